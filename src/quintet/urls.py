"""Addresses of object storage: any fsspec URL."""

import re
from typing import Any

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://.")


def is_url(word: object) -> bool:
    return _URL.match(str(word)) is not None


def filesystem(url: str, extra: str, **options: Any) -> Any:
    """The file system of a URL; an ImportError names the missing package. A malformed URL is a
    ValueError."""
    scheme = url.partition("://")[0]
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ImportError(f"{scheme}:// needs fsspec: pip install 'quintet[{extra}]'") from error
    try:
        return url_to_fs(url, **options)[0]
    except ImportError as error:
        hint = f"{scheme}:// needs more than 'quintet[{extra}]': {str(error).splitlines()[0]}"
        raise ImportError(hint) from error
