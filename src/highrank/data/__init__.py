"""What models read: prepared corpora, and languages whose entropy is known exactly."""

from highrank.data.catalog import find_corpus
from highrank.data.corpus import Corpus, load_corpus
from highrank.data.languages import Language, Stream, factorised, senses
from highrank.data.prepare import TextOptions, prepare_known, prepare_text
from highrank.data.tokenizer import readable
from highrank.data.vocabulary import Vocabulary

__all__ = [
    "BATCHES",
    "Corpus",
    "Language",
    "Stream",
    "TextOptions",
    "Vocabulary",
    "factorised",
    "find_corpus",
    "load_corpus",
    "prepare_known",
    "prepare_text",
    "readable",
    "senses",
]

# The key is what --batch.kind takes; further options are the constructor's arguments.
BATCHES: dict[str, str] = {
    "streams": "highrank.data.batches:TextStreams",
    "blocks": "highrank.data.batches:Blocks",
    "sentences": "highrank.data.sentences:Sentences",
}
