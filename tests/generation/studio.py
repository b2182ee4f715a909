"""A small server of the OpenAI API's two calls that llmock lacks: image edits by upload, and speech.

FastAPI under uvicorn. An edit answers with the uploaded bytes, so that a test can compare them; speech is a WAV whose
pieces leave one by one, and whose end, or whose client's leaving, GET /ended counts.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import FastAPI, Form, UploadFile
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

app = FastAPI()
ended = {"whole": 0, "left": 0}
HEADER = b"RIFF\xff\xff\xff\xffWAVEfmt "
PIECE = bytes(range(256)) * 16


class Speech(BaseModel):
    model: str
    input: str
    voice: str


@app.post("/v1/images/edits")
async def edit(image: UploadFile, prompt: Annotated[str, Form()]) -> dict[str, Any]:
    name = f"{image.filename}: {prompt}"
    return {
        "created": 1,
        "data": [{"b64_json": base64.b64encode(await image.read()).decode(), "revised_prompt": name}],
    }


@app.post("/v1/audio/speech")
async def speech(asked: Speech) -> StreamingResponse:
    async def pieces() -> AsyncIterator[bytes]:
        try:
            yield HEADER
            for _ in asked.input.split():
                yield PIECE
                await asyncio.sleep(0.01)
            ended["whole"] += 1
        except BaseException:
            ended["left"] += 1
            raise

    return StreamingResponse(pieces(), media_type="audio/wav")


@app.get("/ended")
async def how_many_ended() -> dict[str, int]:
    return ended
