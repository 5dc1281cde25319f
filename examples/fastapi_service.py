"""A service for many users at once: one retriever and one engine, and a namespace for each user.

`uvicorn fastapi_service:app` in this folder starts it, and this asks it:
`curl -H 'X-User: ann' 'localhost:8000/answer?question=who+got+the+first+nobel+prize+in+physics'`.
Users share no cached documents and no KV caches. Take their names from your authentication instead.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Header
from fastapi.responses import StreamingResponse
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough

from ragcache_integrations.langchain import (
    ApproximateCacheRetriever,
    ChatRAGCache,
    MiniLMEmbeddings,
)
from ragcache_integrations.resources import load_passages

passages = [passage.text for passage in load_passages()[:100]]
retriever = ApproximateCacheRetriever.from_vectorstore(
    FAISS.from_texts(passages, MiniLMEmbeddings())
)
prompt = ChatPromptTemplate.from_template("{context}\n\nQuestion: {question}")
model = ChatRAGCache(max_tokens=20)  # model="a path or a hub name"


def format_docs(docs: list[Document]) -> str:
    """Put the documents into the prompt."""
    return "\n\n".join(doc.page_content for doc in docs)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Warm up before the first user comes, and end the engine with the service."""
    await retriever.awarm(["who got the first nobel prize in physics"], show_progress=False)
    await model.ainvoke("hello")
    yield
    await model.aclose()


app = FastAPI(lifespan=lifespan)


@app.get("/answer")
async def answer(question: str, x_user: Annotated[str, Header()]) -> StreamingResponse:
    """Answer a question as text, piece by piece."""
    sources = {
        "context": retriever.bind(namespace=x_user) | format_docs,
        "question": RunnablePassthrough(),
    }
    chain = sources | prompt | model.bind(namespace=x_user) | StrOutputParser()
    return StreamingResponse(chain.astream(question), media_type="text/plain")


@app.get("/stats")
async def stats() -> dict[str, int]:
    """Say what the retriever has saved."""
    counts = retriever.stats()
    return {"questions": counts.requests, "searches": counts.store_calls}
