"""Change how a model decodes in mid-sentence, and read from the run what each mode did.

python examples/switch_modes.py OUT.sot
"""

import sys

import sotscope
from sotscope.config import DecodeConfig, PromptConfig, RunConfig
from sotscope.recorder import recording


def main(out: str) -> None:
    settings = RunConfig(
        input=PromptConfig(prompt="List ten animals, one a line."),
        decode=DecodeConfig(max_new_tokens=60),
        out=out,
    )
    changes = {20: {"mode": "sot"}, 40: {"mode": "combine", "guard": False}}
    with recording(settings, model="smollm2") as recorded:
        written = 0
        for step in recorded.steps():
            written += len(step.next_ids) if step.mode != "prompt" else 0
            for when in [when for when in changes if when <= written]:
                recorded.controls.set(**changes.pop(when))  # counts from the next step on

    run = sotscope.open_run(out)
    steps = run.steps[run.steps["mode"] != "prompt"]
    print(steps.groupby("mode").agg(steps=("rows", "size"), tokens=("rows", "sum"), accepted=("accepted", "sum")))
    for found in sotscope.analyze("drafts", run).findings:
        print("-", found.text)
    print(run.tokens.generated)


if __name__ == "__main__":
    main(sys.argv[1])
