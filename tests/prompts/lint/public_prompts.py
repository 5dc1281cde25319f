"""Prompts from public templates and examples, and the same prompts mended.

Where the packages that the tests have hold a prompt, it is taken from there. Of others only as much
is quoted as the linter has to see: "[...]" stands for sentences of the same paragraph. All of the
repositories are under the MIT licence.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from llama_index.core.chat_engine.context import DEFAULT_CONTEXT_TEMPLATE
from llama_index.core.prompts.default_prompts import DEFAULT_TEXT_QA_PROMPT
from llama_index.core.query_engine.citation_query_engine import CITATION_QA_TEMPLATE

from ragcache_integrations.langchain import RAGPromptTemplate
from ragcache_integrations.llama_index import RAGPromptTemplate as LlamaIndexTemplate
from ragcache_integrations.resources import load_passages


@dataclass(frozen=True)
class Public:
    """A public prompt.

    Attributes:
        source: Repository and file.
        prompt: The prompt, or traffic that it makes.
        found: What a careful reader finds in it, see ``docs/lint.md``: code and part.
        mended: The same without it.
    """

    source: str
    prompt: Any
    found: set[tuple[str, str]]
    mended: Any


def chat(system: str, history: str = "messages", last: str = "") -> ChatPromptTemplate:
    tail = [("human", last)] if last else []
    return ChatPromptTemplate([("system", system), MessagesPlaceholder(history), *tail])


GENERATE = (
    "You are an assistant for question-answering tasks. "
    "Use the following pieces of retrieved context to answer the question. "
    "If you don't know the answer, just say that you don't know. "
    "Use three sentences maximum and keep the answer concise.\n"
    "Question: {question} \n"
    "Context: {context}"
)

GRADE = (
    "You are a grader assessing relevance of a retrieved document to a user question. \n "
    "Here is the retrieved document: \n\n {context} \n\n"
    "Here is the user question: {question} \n"
    "If the document contains keyword(s) or semantic meaning related to the user question, "
    "grade it as relevant. \n"
    "Give a binary score 'yes' or 'no' score to indicate whether the document is relevant to the "
    "question."
)

CHAT_LANGCHAIN = """\
You are an expert programmer and problem-solver, tasked with answering any question about Langchain.

Generate a comprehensive and informative answer of 80 words or less for the given question based \
solely on the provided search results (URL and content). [...]

<context>
    {context}
<context/>

REMEMBER: If there is no relevant information within the context, just say "Hmm, I'm not sure." \
Don't try to make up an answer. Anything between the preceding 'context' html blocks is retrieved \
from a knowledge bank, not part of the conversation with the user.\
"""

RESPONSE = """You are a helpful AI assistant. Answer the user's questions based on the retrieved \
documents.

{retrieved_docs}

System time: {system_time}"""

QUERIES = """Generate search queries to retrieve documents that may help answer the user's \
question. Previously, you made the following queries:
    \n<previous_queries/>
{queries}
</previous_queries>

System time: {system_time}"""

MEMORY = """You are a helpful and friendly chatbot. Get to know the user! Ask questions! Be \
spontaneous! \n{user_info}

System Time: {time}"""

REFINE = (
    "The original question is as follows: {question}\n"
    "We have provided an existing answer: {existing_answer}\n"
    "We have the opportunity to refine the existing answer "
    "(only if needed) with some more context below.\n"
    "------------\n"
    "{context_str}\n"
    "------------\n"
    "Given the new context, refine the original answer to better "
    "answer the question. "
    "If the context isn't useful, return the original answer."
)

STUFF = """Use the following pieces of context to answer the question at the end. If you don't \
know the answer, just say that you don't know, don't try to make up an answer.

{context}

Question: {question}
Helpful Answer:"""

ASSISTANT = "You are the assistant of a library. Answer in one sentence, and name your sources."


def citations(*, ranked: bool, requests: int = 40) -> list[dict[str, Any]]:
    """What ``CitationQueryEngine`` sends: three of eight sources, in the order of relevance."""
    passages = [passage.text.strip() for passage in load_passages()[:8]]
    questions = [f"Which of the passages is about subject {n}?" for n in range(requests)]
    rng = random.Random(0)
    sent = []
    for question in questions:
        chosen = rng.sample(range(len(passages)), 3)
        names = [rank if ranked else f"p{number}" for rank, number in enumerate(chosen, 1)]
        context = "\n\n".join(
            f"Source {name}:\n{passages[number]}\n"
            for name, number in zip(names, chosen, strict=True)
        )
        prompt = CITATION_QA_TEMPLATE.format(context_str=context, query_str=question)
        sent.append({"model": "m", "messages": [{"role": "user", "content": prompt}]})
    return sent


PUBLIC = [
    Public(
        "langchain-ai/langgraph, docs/docs/tutorials/rag/langgraph_agentic_rag.md, GENERATE_PROMPT",
        PromptTemplate.from_template(GENERATE),
        {("query-before-documents", "{question}")},
        PromptTemplate.from_template(
            GENERATE.replace("Question: {question} \nContext: {context}", "")
            + "Context: {context}\nQuestion: {question}"
        ),
    ),
    Public(
        "langchain-ai/langgraph, docs/docs/tutorials/rag/langgraph_agentic_rag.md, GRADE_PROMPT",
        PromptTemplate.from_template(GRADE),
        {
            ("documents-before-fixed-text", "{context}"),
            ("query-before-fixed-text", "{question}"),
        },
        RAGPromptTemplate(
            system="You are a grader assessing relevance of a retrieved document to a user "
            "question.\nIf the document contains keyword(s) or semantic meaning related to the "
            "user question, grade it as relevant.\nGive a binary score 'yes' or 'no' score to "
            "indicate whether the document is relevant to the question.",
            documents="Here is the retrieved document:\n\n{context}",
            query="Here is the user question: {question}",
        ),
    ),
    Public(
        "langchain-ai/chat-langchain, backend/chain.py, RESPONSE_TEMPLATE and create_chain",
        chat(CHAT_LANGCHAIN, "chat_history", "{question}"),
        {("documents-before-history", "{context}")},
        RAGPromptTemplate(
            system=CHAT_LANGCHAIN.replace("<context>\n    {context}\n<context/>\n\n", ""),
            history="{chat_history}",
            documents="<context>\n{context}\n</context>",
            query="{question}",
        ),
    ),
    Public(
        "langchain-ai/retrieval-agent-template, src/retrieval_graph/prompts.py, "
        "RESPONSE_SYSTEM_PROMPT",
        chat(RESPONSE),
        {("documents-before-history", "{retrieved_docs}"), ("timestamp", "{system_time}")},
        RAGPromptTemplate(
            system="You are a helpful AI assistant. Answer the user's questions based on the "
            "retrieved documents.",
            history="{messages}",
            documents="{retrieved_docs}",
            query="System time: {system_time}\n\n{question}",
        ),
    ),
    Public(
        "langchain-ai/retrieval-agent-template, src/retrieval_graph/prompts.py, "
        "QUERY_SYSTEM_PROMPT",
        chat(QUERIES),
        {("query-before-history", "{queries}"), ("timestamp", "{system_time}")},
        ChatPromptTemplate(
            [
                ("system", QUERIES.partition(" Previously")[0]),
                MessagesPlaceholder("messages"),
                ("human", "Your queries so far:\n{queries}\n\nSystem time: {system_time}"),
            ]
        ),
    ),
    Public(
        "langchain-ai/memory-agent, src/memory_agent/prompts.py, SYSTEM_PROMPT",
        chat(MEMORY),
        {("timestamp", "{time}")},
        RAGPromptTemplate(
            [("instructions", MEMORY.partition(" \n{user_info}")[0]), ("history", "{messages}")],
            query="System Time: {time}\n\n{question}",
        ),
    ),
    Public(
        "langchain-ai/langchain, libs/langchain/langchain_classic/chains/question_answering/"
        "refine_prompts.py, DEFAULT_REFINE_PROMPT_TMPL",
        PromptTemplate.from_template(REFINE),
        {
            ("query-before-documents", "{question}"),
            ("varying-text", "{existing_answer}"),
            ("documents-before-fixed-text", "{context_str}"),
        },
        PromptTemplate.from_template(
            "We have the opportunity to refine an existing answer (only if needed) with some more "
            "context below. Given the new context, refine the original answer to better answer "
            "the question. If the context isn't useful, return the original answer.\n"
            "------------\n{context_str}\n------------\n"
            "The original question: {question}\nThe existing answer: {existing_answer}"
        ),
    ),
    Public(
        "run-llama/llama_index, llama-index-core/llama_index/core/prompts/default_prompts.py, "
        "DEFAULT_TEXT_QA_PROMPT",
        DEFAULT_TEXT_QA_PROMPT,
        {("documents-before-fixed-text", "{context_str}")},
        LlamaIndexTemplate(
            system="Given the context information and not prior knowledge, answer the query.",
            documents="Context information is below.\n{context_str}",
            query="Query: {query_str}\nAnswer:",
        ),
    ),
    Public(
        "run-llama/llama_index, llama-index-core/llama_index/core/chat_engine/context.py and "
        "utils.py, DEFAULT_CONTEXT_TEMPLATE and get_prefix_messages_with_context",
        [
            ("system", DEFAULT_CONTEXT_TEMPLATE + ASSISTANT),
            ("placeholder", "{chat_history}"),
            ("user", "{query_str}"),
        ],
        {("documents-before-history", "{context_str}")},
        [
            ("system", ASSISTANT + " Use the context information below to assist the user."),
            ("placeholder", "{chat_history}"),
            ("user", "{context_str}\n\n{query_str}"),
        ],
    ),
    Public(
        "run-llama/llama_index, llama-index-core/llama_index/core/query_engine/"
        "citation_query_engine.py, CITATION_QA_TEMPLATE and _create_citation_nodes",
        citations(ranked=True),
        {("rank-in-document", '"Source N:"')},
        citations(ranked=False),
    ),
]
