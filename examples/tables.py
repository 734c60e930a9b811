"""A run with nothing of ours but the store: plain xarray for the states, pandas for tokens and steps.

python examples/tables.py runs/a.sot
"""

import sys

import pandas as pd
import xarray as xr


def main(path: str) -> None:
    data = xr.open_zarr(f"{path}/states.zarr")
    print(data)
    norm = (data.resid.astype("float32") ** 2).sum("dim") ** 0.5
    print("\nmedian norm by layer, every fifth:")
    print(norm.median("token").isel(layer=slice(None, None, 5)).to_series().round(1).to_string())

    steps = xr.open_zarr(f"{path}/states.zarr", group="steps").to_dataframe()
    print("\nmilliseconds a step:")
    print((steps[["draft_ns", "forward_ns", "accept_ns", "capture_ns"]] / 1e6).describe().round(2).to_string())

    scalars = xr.open_zarr(f"{path}/states.zarr", group="scalars")
    frame = pd.DataFrame({"token_id": data.token_id.values, "entropy": scalars.entropy.values})
    print("\nthe five rows the model was least sure at:")
    print(frame.nlargest(5, "entropy").to_string())


if __name__ == "__main__":
    main(sys.argv[1])
