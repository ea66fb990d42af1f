"""A conversation as ChatGPT exports it (conversations.json, read 2026-11-27): a tree of messages,
with a branch for every answer that was asked for again.
"""

from typing import Any

from brimful.base.errors import DataError


def shown_branch(mapping: Any, node: Any, where: str) -> list[dict[str, object]]:
    """Return the messages, with role and content, on the way to the one that was shown last. Empty
    messages of the system are passed over.

    Args:
        mapping: Nodes by their names, each with its message and the name of its parent.
        node: Name of the last one.
        where: The row, for errors.

    Raises:
        DataError: the tree is not whole, or a message is not text.
    """
    turns: list[dict[str, object]] = []
    for _ in mapping or ():
        if node is None:
            break
        try:
            message, node = mapping[node].get("message"), mapping[node].get("parent")
            if message is None:
                continue
            role, content = message["author"]["role"], message["content"]
            kind, parts = content["content_type"], content.get("parts", ())
        except (LookupError, TypeError, AttributeError) as error:
            raise DataError(f"{where}: the tree of messages is not whole at {node!r}.") from error
        if kind != "text":
            raise DataError(
                f"{where}: a message of the {role}'s is of type {kind!r}, not text. Remove the"
                " conversation."
            )
        if role != "system" or any(parts):
            turns.append({"role": role, "content": parts})
    return turns[::-1]
