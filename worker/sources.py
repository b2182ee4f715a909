"""Where a checkpoint comes from: a directory, or a repository on the Hugging Face hub and its local cache.

It knows directories, hub ids and the hub's client. It must not know what is in a checkpoint's files.
"""

import re
from pathlib import Path

from worker.errors import CheckpointRefused
from worker.folder import FILES, complete

# A commit on the hub: what it holds never changes, where a branch or a tag may move.
COMMIT = re.compile(r"[0-9a-f]{40}")


def resolve(source: str) -> tuple[Path, str, str | None]:
    """Folder, name and revision of a source.

    A hub id with a commit as its revision is looked for in the local cache, and the hub is asked only if files are
    missing there. With any other revision, or none, the hub is asked which commit that is now.
    """
    if Path(source).is_dir():
        return Path(source), Path(source).resolve().name, None
    if source.startswith(("/", ".", "~")):
        raise CheckpointRefused(source, "", "there is no such directory")
    repo, _, subfolder = source.partition("#")
    repo, _, revision = repo.partition("@")
    try:
        root = _cached(repo, revision, subfolder) or _snapshot(repo, revision, subfolder, local=False)
    except Exception as error:  # the hub's client raises its own, httpx's and OSError alike
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise CheckpointRefused(
            source, "", f"neither a directory nor to be had from the hub: {reason[0]}"
        ) from error
    folder = root / subfolder
    if not folder.is_dir():
        raise CheckpointRefused(source, subfolder, "the hub's repository has no such folder")
    # The cache names a snapshot's folder by its commit.
    return folder, f"{repo}/{subfolder}" if subfolder else repo, root.name


def _cached(repo: str, revision: str, subfolder: str) -> Path | None:
    """The snapshot of a commit, if all of its files that matter are in the local cache."""
    if not COMMIT.fullmatch(revision):
        return None
    try:
        root = _snapshot(repo, revision, subfolder, local=True)
    except FileNotFoundError:
        return None
    return root if complete(root / subfolder) else None


def _snapshot(repo: str, revision: str, subfolder: str, *, local: bool) -> Path:
    """The folder of a snapshot in the local cache, its missing files downloaded unless `local`."""
    from huggingface_hub import snapshot_download  # slow to import, and only hub ids need it

    prefix = f"{subfolder}/" if subfolder else ""
    patterns = [prefix + name for name in FILES]
    path = snapshot_download(repo, revision=revision or None, allow_patterns=patterns, local_files_only=local)
    return Path(path)
