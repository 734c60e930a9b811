"""A probe: does a token's state already tell whether the next token begins a new word? scikit-learn, by layer.

python examples/probe.py runs/a.sot
"""

import sys

import numpy as np
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sotscope


def main(path: str) -> None:
    run = sotscope.open_run(path)
    tokens = run.tokens
    chosen = tokens.next_ids >= 0
    begins = np.array([run.pieces.data[int(i)][:1] == b" " for i in tokens.next_ids[chosen]])
    if len(begins) < 20 or min(np.bincount(begins, minlength=2)) < 5:
        sys.exit("too few tokens of both kinds; record a longer run.")
    guess = cross_val_score(DummyClassifier(), np.zeros((len(begins), 1)), begins, cv=5).mean()
    print(f"{len(begins)} tokens, {begins.mean():.0%} begin a word; always guessing the same is right {guess:.0%}")
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
    for layer in run.layers[:: max(1, len(run.layers) // 6)]:
        right = cross_val_score(probe, run.states("resid", layer=layer)[chosen], begins, cv=5).mean()
        print(f"layer {layer:3d}: right {right:.0%}  {'#' * round(40 * right)}")


if __name__ == "__main__":
    main(sys.argv[1])
