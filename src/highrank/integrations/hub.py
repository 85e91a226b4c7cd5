"""The Hugging Face hub: which names can be on it, and whether a model is, asked once."""

import re
from typing import Any

# A name, or that of a user or an organisation, a slash, and a name.
NAME = re.compile(r"(?!.*(--|\.\.))\w([\w.-]*\w)?(/\w([\w.-]*\w)?)?", re.ASCII)
MAX_LENGTH = 96


class HubError(ValueError):
    """What the hub said of a model, or that it said nothing."""


def is_hub_name(name: str) -> bool:
    """Whether a model on the hub can have this name, as gpt2 or google/gemma-2-2b."""
    return len(name) <= MAX_LENGTH and NAME.fullmatch(name) is not None


def hub_answers(name: str) -> bool:
    """Whether the model is on the hub: one question, where transformers would ask six times.

    False if there is no answer but the model was downloaded before. A `HubError` if there is no
    answer and no download, or if the hub has no such model.
    """
    hub: Any = _hub()
    try:
        hub.get_hf_file_metadata(hub.hf_hub_url(name, "config.json"))
    except (hub.errors.GatedRepoError, hub.errors.EntryNotFoundError):
        # The model is there. What keeps it from being read is said when it is read.
        return True
    except hub.errors.RepositoryNotFoundError:
        raise HubError("the Hugging Face hub has no model of this name") from None
    # Errors of the connection are no OSErrors in newer versions.
    except (OSError, hub.errors.HTTPError) as error:
        if isinstance(hub.try_to_load_from_cache(name, "config.json"), str):
            return False
        reason = next((line for line in str(error).splitlines() if line.strip()), repr(error))
        raise HubError(f"the Hugging Face hub could not be reached ({reason})") from None
    return True


def _hub() -> Any:
    import huggingface_hub
    import huggingface_hub.errors

    return huggingface_hub
