"""Loading: from the settings' sources to a catalog of models that are ready to decide.

It knows which setting goes into which part. It must not know requests or HTTP.
"""

import datetime
import logging
from pathlib import Path

from worker import answers, checkpoint, cores, folder
from worker.buckets import Buckets
from worker.catalog import Catalog, CatalogEntry
from worker.decide import ServedModel
from worker.engine import Engine, use_threads
from worker.errors import CheckpointRefused
from worker.lane import Lane
from worker.settings import EMBEDDED, KNOWN, ModelSource, Settings

log = logging.getLogger("worker")

EMBEDDED_DATE = "2026-11-30"
EMBEDDED_WORDS = (
    "Demonstration model, 19 M parameters, English. Good for routing, intent, moderation, sentiment, urgency "
    "and severity of short texts; not for reading comprehension, negation, fine facts, numbers, long "
    "documents or other languages."
)
PUBLISHED_HINT = "Set LAYA_MODELS=english for the published Laya."


def load(settings: Settings, lane: Lane) -> Catalog:
    """Every model of the settings, ready to decide. Raises StartFailed for the first that is not."""
    threads = cores.choose(settings.threads, settings.omp_threads)
    use_threads(threads.count)
    log.info("threads on the CPU: %d (%s)", threads.count, threads.reason)
    entries = []
    for source in settings.models:
        log.info("loading %s", source.name)
        entries.append(_load_one(source, settings))
        facts = entries[-1].facts
        log.info("loaded %s on %s in %s", facts["identity"], facts["device"], facts["dtype"])
        if source.source == KNOWN[EMBEDDED]:
            log.warning("%s: %s %s", source.name, EMBEDDED_WORDS, PUBLISHED_HINT)
    return Catalog(tuple(entries), lane)


def _load_one(source: ModelSource, settings: Settings) -> CatalogEntry:
    try:
        loaded = checkpoint.load(source.source, settings.device, settings.dtype)
    except CheckpointRefused as refused:
        raise CheckpointRefused(source.name, "", str(refused)) from refused
    config = loaded.config
    temperatures, replaced = answers.read_temperatures(config.temperature, config.temperature_by_options)
    for line in replaced:
        log.warning("%s: %s", source.name, line)
    buckets = Buckets(lengths=settings.buckets) if settings.buckets else None
    engine = Engine(loaded, buckets=buckets, graphs=settings.graphs)
    identity = f"{source.name}@{loaded.revision[:12]}"
    embedded = source.source == KNOWN[EMBEDDED]
    facts = {"name": source.name, "identity": identity, "max_len": config.max_len, **engine.describe()}
    return CatalogEntry(
        model=ServedModel(source.name, identity, loaded.tokenizer, temperatures, engine),
        description=EMBEDDED_WORDS
        if embedded
        else f"Laya checkpoint {loaded.name}, revision {loaded.revision}.",
        release_date=EMBEDDED_DATE if embedded else _date(loaded.folder),
        facts=facts,
    )


def _date(checkpoint_folder: Path) -> str:
    """The day of a checkpoint's weights, as the file system knows it."""
    changed = (checkpoint_folder / folder.WEIGHTS).stat().st_mtime
    return datetime.datetime.fromtimestamp(changed, datetime.UTC).date().isoformat()
