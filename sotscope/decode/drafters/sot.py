"""`sot` ("state over tokens"): a trained predictor rolls the lm_head's input forward, token by token.

Nearest published systems: ReDrafter, EAGLE, Arctic's LSTM speculator. The name's paper (arXiv 2512.12777) is a
framework without a decoder; nothing here claims its results.
"""

from __future__ import annotations

from sotscope.decode.contracts import Setup
from sotscope.decode.drafters.states import StateDrafter
from sotscope.decode.predictors.bundle import load_bundle


def make(setup: Setup) -> StateDrafter:
    return trained("sot", setup)


def trained(mode: str, setup: Setup) -> StateDrafter:
    """The trained drafter of ``mode`` for the base model of ``setup``. Raises DecodeError where there is none."""
    bundle = load_bundle(setup.find(mode), fingerprint=setup.fingerprint, base=setup.name)
    return StateDrafter(mode, setup.model, bundle, setup.settings.draft)
