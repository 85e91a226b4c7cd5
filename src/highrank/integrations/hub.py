"""The Hugging Face hub: which names a model can have there, and whether it is there."""

import re
from typing import Any

# A name, or that of a user or an organisation, a slash, and a name.
NAME = re.compile(r"(?!.*(--|\.\.))\w([\w.-]*\w)?(/\w([\w.-]*\w)?)?", re.ASCII)
MAX_LENGTH = 96


class HubError(ValueError):
    """The hub has no such model, or cannot be reached."""


def is_hub_name(name: str) -> bool:
    """Whether a model on the hub can have this name, as gpt2 or google/gemma-2-2b."""
    return len(name) <= MAX_LENGTH and NAME.fullmatch(name) is not None


def hub_answers(name: str) -> bool:
    """Whether the model is on the hub: one request, where transformers would send six.

    False if there is no answer but the model was downloaded before. A `HubError` if there is no
    answer and no download, or if the hub has no such model.
    """
    import huggingface_hub
    import huggingface_hub.errors

    hub: Any = huggingface_hub
    try:
        hub.get_hf_file_metadata(hub.hf_hub_url(name, "config.json"))
    except (hub.errors.GatedRepoError, hub.errors.EntryNotFoundError):
        # The model is there. Why it cannot be loaded is reported when it is loaded.
        return True
    except hub.errors.RepositoryNotFoundError:
        raise HubError("the Hugging Face hub has no model of this name") from None
    # Errors of the connection are no OSErrors in newer versions.
    except (OSError, hub.errors.HTTPError) as error:
        if isinstance(hub.try_to_load_from_cache(name, "config.json"), str):
            return False
        raise HubError(f"the Hugging Face hub could not be reached ({first_line(error)})") from None
    return True


def first_line(error: Exception) -> str:
    """Of the error's message, which may be a page."""
    return next((line for line in str(error).splitlines() if line.strip()), repr(error))
