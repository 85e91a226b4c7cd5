"""Language models: a backbone that reads tokens, and a head that predicts the next one."""

from highrank.models.awd_lstm import AWDLSTM
from highrank.models.language_model import LanguageModel

__all__ = ["AWDLSTM", "LanguageModel"]
