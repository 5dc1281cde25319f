"""A LangChain chain whose retriever and model are ours; `01_langchain_retriever.ipynb` explains it.

The model is the bundled one: pass yours as ChatRAGCache(model=...).
"""

from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough

from ragcache_integrations.langchain import (
    ApproximateCacheRetriever,
    ChatRAGCache,
    MiniLMEmbeddings,
)
from ragcache_integrations.resources import load_passages


def format_docs(docs: list[Document]) -> str:
    """Put the documents into the prompt."""
    return "\n\n".join(doc.page_content for doc in docs)


passages = [passage.text for passage in load_passages()[:100]]
store = FAISS.from_texts(passages, MiniLMEmbeddings())
retriever = ApproximateCacheRetriever.from_vectorstore(store, tolerance=0.3)
prompt = ChatPromptTemplate.from_template("{context}\n\nQuestion: {question}")
sources = {"context": retriever | format_docs, "question": RunnablePassthrough()}

with ChatRAGCache(max_tokens=20) as model:  # model="a path or a hub name"
    chain = sources | prompt | model
    for question in (
        "who got the first nobel prize in physics",
        "who was given the first nobel prize in physics",
    ):
        answer = chain.invoke(question)
        print(f"{question}: {retriever.stats().hits} hits so far, {answer.usage_metadata}")
