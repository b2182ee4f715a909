"""Where a checkpoint comes from: a directory, or a repository on the Hugging Face hub and its local cache.

It knows directories, hub ids and the hub's client. It must not know what is in a checkpoint's files.
"""

from pathlib import Path

from worker.errors import CheckpointRefused
from worker.folder import FILES


def resolve(source: str) -> tuple[Path, str, str | None]:
    """Folder, name and revision of a source. A hub id is looked up in the local cache and on the hub."""
    if Path(source).is_dir():
        return Path(source), Path(source).resolve().name, None
    if source.startswith(("/", ".", "~")):
        raise CheckpointRefused(source, "", "there is no such directory")
    repo, _, subfolder = source.partition("#")
    repo, _, revision = repo.partition("@")
    from huggingface_hub import snapshot_download  # slow to import, and only hub ids need it

    prefix = f"{subfolder}/" if subfolder else ""
    try:
        root = Path(
            snapshot_download(
                repo, revision=revision or None, allow_patterns=[prefix + name for name in FILES]
            )
        )
    except Exception as error:  # the hub's client raises its own, httpx's and OSError alike
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise CheckpointRefused(
            source, "", f"neither a directory nor to be had from the hub: {reason[0]}"
        ) from error
    folder = root / subfolder if subfolder else root
    if not folder.is_dir():
        raise CheckpointRefused(source, subfolder, "the hub's repository has no such folder")
    # The cache names a snapshot's folder by its commit.
    return folder, f"{repo}/{subfolder}" if subfolder else repo, root.name
