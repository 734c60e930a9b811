"""Fits the early-warning score, and says what it is worth on prompts that it was not fitted to."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, roc_auc_score
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sotscope.health.early_model import DOUBT_NAMES, TOKEN_NAMES, Score, feature_names
from sotscope.training.early_rows import Looks

FOLDS = 5
STRENGTH = 0.1
"""Inverse of the regularisation of the logistic regression."""
ALLOWED = 0.05
"""False-positive rate at which thresholds are set."""


def feature_groups(watched: int) -> dict[str, list[str]]:
    """The scores that are fitted, by name, with the features each one may use."""
    tokens, doubt = list(TOKEN_NAMES), list(DOUBT_NAMES)
    states = [name for name in feature_names(watched) if name not in {*tokens, *doubt}]
    return {
        "all": tokens + doubt + states, "tokens": tokens, "doubt": doubt, "states": states,
        "tokens+doubt": tokens + doubt, "tokens+states": tokens + states,
    }  # fmt: skip


def fit_score(looks: Looks, features: list[str], names: list[str]) -> tuple[Score, NDArray[np.float64]]:
    """A calibrated score on ``features``, and the probabilities [look] that scores fitted to other texts give.

    Calibration (Platt 1999): a logistic regression on the out-of-fold values, folded into weights and bias. A text
    counts for as many as it stands for.
    """
    chosen = looks.features[:, [names.index(feature) for feature in features]]
    weight = looks.weight[looks.text]
    folds = GroupKFold(min(FOLDS, len(np.unique(looks.text))))
    line = make_pipeline(StandardScaler(), LogisticRegression(C=STRENGTH, max_iter=2000))
    options = {"logisticregression__sample_weight": weight}
    logits = cross_val_predict(
        line, chosen, looks.soon, groups=looks.text, cv=folds, method="decision_function", params=options
    )
    platt = LogisticRegression(C=1e6).fit(logits[:, None], looks.soon, sample_weight=weight)
    scaler, regression = line.fit(chosen, looks.soon, **options).named_steps.values()
    slope, shift = float(platt.coef_[0, 0]), float(platt.intercept_[0])
    weights = slope * regression.coef_[0] / scaler.scale_
    bias = shift + slope * float(regression.intercept_[0]) - float(weights @ scaler.mean_)
    score = Score(features=features, weights=np.round(weights, 6).tolist(), bias=round(bias, 6))
    return score, 1 / (1 + np.exp(-(shift + slope * logits)))


def predict(score: Score, looks: Looks, names: list[str]) -> NDArray[np.float64]:
    """Probabilities [look]."""
    chosen = looks.features[:, [names.index(feature) for feature in score.features]]
    found: NDArray[np.float64] = 1 / (1 + np.exp(-(score.bias + chosen @ np.array(score.weights))))
    return found


def thresholds(looks: Looks, chance: NDArray[np.float64]) -> tuple[float, float]:
    """Above which a share of ``ALLOWED`` of the looks at healthy texts is, and of healthy texts ever is."""
    healthy = looks.left < 0
    highest = [chance[looks.text == text].max() for text in np.unique(looks.text[healthy])]
    return float(np.quantile(chance[healthy], 1 - ALLOWED)), float(np.quantile(highest, 1 - ALLOWED))


def auc(looks: Looks, chance: NDArray[np.float64]) -> float:
    """Area under the ROC curve of the looks: is a loop near, or is there none, or is it far?"""
    return round(float(roc_auc_score(looks.soon, chance)), 4)


def warned(looks: Looks, chance: NDArray[np.float64], threshold: float) -> dict[str, Any]:
    """What a threshold is worth: how often healthy text is above it, and how early texts that loop are.

    ``lead`` is how many tokens before the loop the first look above the threshold was, 0 where there was none;
    ``lead_near`` counts only looks within 128 tokens of the loop (a warning much earlier was luck).
    """
    healthy, above = looks.left < 0, chance > threshold
    texts = {bool(one): np.unique(looks.text[healthy == one]) for one in (True, False)}
    first = [looks.left[(looks.text == text) & above] for text in texts[False]]
    lead = np.array([found.max(initial=0) for found in first])
    near = np.array([found[found <= 128].max(initial=0) for found in first])
    return {
        "threshold": round(threshold, 4),
        "of_healthy_rows": round(float(above[healthy].mean()), 4),
        "of_healthy_texts": round(float(np.mean([above[looks.text == text].any() for text in texts[True]])), 4),
        "warned": round(float((lead > 0).mean()), 4),
        "lead_median": float(np.median(lead)),
        "lead_near_median": float(np.median(near)),
    }


def calibration(looks: Looks, chance: NDArray[np.float64]) -> dict[str, Any]:
    """Brier score, that of always saying the rate, and a reliability table [predicted, seen, looks]."""
    edges = np.array([0.0, 0.01, 0.03, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0])
    place = np.digitize(chance, edges[1:-1])
    rate = float(looks.soon.mean())
    lines = [
        [round(float(chance[place == one].mean()), 3), round(float(looks.soon[place == one].mean()), 3),
         int((place == one).sum())]
        for one in range(len(edges) - 1) if (place == one).any()
    ]  # fmt: skip
    brier = round(float(brier_score_loss(looks.soon, chance)), 4)
    return {"brier": brier, "brier_of_rate": round(rate * (1 - rate), 4), "reliability": lines}
