"""The errors sotscope raises on purpose. A message says what was seen and what to do; the CLI prints it as one line."""


class SotscopeError(Exception):
    """Base of every error that is the user's to mend. The CLI prints it without a traceback and exits with 2."""


class ConfigError(SotscopeError):
    """A setting that does not exist, or a value outside its range."""


class ModelError(SotscopeError):
    """A model that cannot be found, read, or used for decoding."""


class SiteError(SotscopeError):
    """A site, layer or family that this model does not have."""


class CaptureError(SotscopeError):
    """The hooks saw something that rows cannot be made of (a batch, another cache, no forward at all)."""


class PromptError(SotscopeError):
    """An empty prompt, one longer than the context, or messages that the chat template refuses."""


class DecodeError(SotscopeError):
    """A combination of mode, model and settings that would not decode losslessly."""


class StoreError(SotscopeError):
    """A run that cannot be created, opened or trusted."""


class CostError(SotscopeError):
    """A recording that would take more disk than allowed; the message names cheaper settings."""


class TrainingError(SotscopeError):
    """A drafter cannot be trained, or a trained one cannot be used here."""


class AnalysisError(SotscopeError):
    """An analyzer that the run, or the part of it that was selected, gives nothing to work on."""


class LiveError(SotscopeError):
    """A command that the engine does not know, or that makes no sense to it now."""


class HealthError(SotscopeError):
    """A monitor, recovery or intervention that does not exist, or that cannot be used on this run or model."""
