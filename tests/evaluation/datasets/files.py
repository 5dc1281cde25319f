"""Small files of data sets, as their authors publish them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

__all__ = [
    "FINQA",
    "HOTPOTQA",
    "LONGBENCH",
    "MUSIQUE",
    "SQUAD",
    "TATQA",
    "TRIVIAQA",
    "write_json",
    "write_lines",
]

SQUAD: dict[str, Any] = {
    "version": "v2.0",
    "data": [
        {
            "title": "Roman_Empire",
            "paragraphs": [
                {
                    "context": "Rome is in Italy. It is old.",
                    "qas": [
                        {
                            "id": "56a",
                            "question": "Where is Rome?",
                            "answers": [
                                {"text": "Italy", "answer_start": 11},
                                {"text": "in Italy", "answer_start": 8},
                                {"text": "Italy", "answer_start": 11},
                            ],
                            "is_impossible": False,
                        },
                        {
                            "id": "56b",
                            "question": "Where is Bern?",
                            "answers": [],
                            "is_impossible": True,
                            "plausible_answers": [{"text": "Italy", "answer_start": 11}],
                        },
                    ],
                },
                {"context": "Bern is in Switzerland.", "qas": []},
            ],
        }
    ],
}

TRIVIAQA: dict[str, Any] = {
    "Data": [
        {
            "Answer": {
                "Aliases": ["Sunset Blvd.", "Sunset Boulevard"],
                "NormalizedAliases": ["sunset blvd", "sunset boulevard"],
                "NormalizedValue": "sunset boulevard",
                "Value": "Sunset Boulevard",
                "HumanAnswers": ["The Boulevard of Sunset"],
            },
            "EntityPages": [{"Filename": "Webber.txt", "Title": "Andrew Lloyd Webber"}],
            "Question": "Which musical premiered in 1993?",
            "QuestionId": "tc_33",
            "QuestionPartOfVerifiedEval": True,
            "SearchResults": [{"Filename": "35/35_995.txt", "Title": "Musicals", "Rank": 0}],
        },
        {
            "Answer": {"Aliases": ["Rome"], "NormalizedAliases": ["rome"], "Value": "Rome"},
            "EntityPages": [{"Filename": "Webber.txt", "Title": "Andrew Lloyd Webber"}],
            "Question": "Which city?",
            "QuestionId": "tc_34",
            "QuestionPartOfVerifiedEval": False,
            "SearchResults": [],
        },
    ],
    "Domain": "Web",
    "VerifiedEval": False,
    "Version": 1.0,
}

HOTPOTQA: list[dict[str, Any]] = [
    {
        "_id": "5a8",
        "question": "Where was the director of the film born?",
        "answer": "Kansas City",
        "type": "bridge",
        "level": "hard",
        "supporting_facts": [["The Film", 0], ["The Director", 1]],
        "context": [
            ["The Film", ["The Film is by The Director.", " It is long."]],
            ["The Director", ["The Director is old.", " She was born in Kansas City."]],
            ["Other", ["Something else."]],
            ["Empty", []],
        ],
    },
    {
        "_id": "5a9",
        "question": "Are both films old?",
        "answer": "yes",
        "type": "comparison",
        "level": "easy",
        "supporting_facts": [["The Film", 0]],
        "context": [["The Film", ["The Film is by The Director.", " It is long."]]],
    },
]

MUSIQUE: list[dict[str, Any]] = [
    {
        "id": "2hop__1_2",
        "question": "Who is the spouse of the performer of Imagine?",
        "question_decomposition": [],
        "answer": "Yoko Ono",
        "answer_aliases": ["Ono Yoko"],
        "answerable": True,
        "paragraphs": [
            {"idx": 0, "title": "A", "paragraph_text": "John sang.", "is_supporting": True},
            {"idx": 1, "title": "B", "paragraph_text": "No.", "is_supporting": False},
            {"idx": 2, "title": "C", "paragraph_text": "John and Yoko Ono.", "is_supporting": True},
        ],
    },
    {
        "id": "2hop__1_2",
        "question": "Who is the spouse of the performer of Imagine?",
        "answer": "Yoko Ono",
        "answer_aliases": [],
        "answerable": False,
        "paragraphs": [],
    },
]

LONGBENCH: dict[str, list[dict[str, Any]]] = {
    "hotpotqa": [
        {
            "input": "Where is Rome?",
            "context": "Passage 1:\nBern\nBern is old.\n\nPassage 2:\nRome\nRome is in Italy.\n",
            "answers": ["Italy"],
            "length": 10,
            "dataset": "hotpotqa",
            "language": "en",
            "all_classes": None,
            "_id": "h1",
        }
    ],
    "trec": [
        {
            "input": "Question: Who is it ?\nType:",
            "context": "Question: Where ?\nType: Other location\nQuestion: Who ?\nType: Individual",
            "answers": ["Individual"],
            "length": 10,
            "dataset": "trec",
            "language": "en",
            "all_classes": ["Other location", "Individual", "Location"],
            "_id": "t1",
        }
    ],
    "samsum": [
        {
            "input": "Dialogue: A: Hello.\nSummary: ",
            "context": "Dialogue: B: Bye.\nSummary: B leaves.",
            "answers": ["A says hello to all"],
            "length": 10,
            "dataset": "samsum_e",
            "language": "en",
            "all_classes": None,
            "_id": "s1",
        }
    ],
}

TATQA: list[dict[str, Any]] = [
    {
        "table": {
            "uid": "t",
            "table": [["", "2019", "2018"], ["", "", ""], ["Other", "44.1", "56.7"]],
        },
        "paragraphs": [
            {"uid": "p1", "order": 1, "text": "Contracts are fixed-price, cost-plus or both."},
            {"uid": "p2", "order": 2, "text": "The table is in millions."},
        ],
        "questions": [
            {
                "uid": "q1",
                "order": 1,
                "question": "What are the contract types?",
                "answer": ["fixed-price", "cost-plus"],
                "answer_type": "multi-span",
                "answer_from": "text",
                "rel_paragraphs": ["1"],
                "scale": "",
            },
            {
                "uid": "q2",
                "order": 2,
                "question": "What is the change in Other?",
                "answer": -12.6,
                "answer_type": "arithmetic",
                "answer_from": "table-text",
                "rel_paragraphs": ["2"],
                "scale": "million",
            },
            {
                "uid": "q3",
                "order": 3,
                "question": "What is the percentage change in Other?",
                "answer": -22.22,
                "answer_type": "arithmetic",
                "answer_from": "table",
                "rel_paragraphs": [],
                "scale": "percent",
            },
            {
                "uid": "q4",
                "order": 4,
                "question": "When does the year end?",
                "answer": ["September 30, 2019"],
                "answer_type": "span",
                "answer_from": "table",
                "rel_paragraphs": [],
                "scale": "",
            },
        ],
    }
]

FINQA: list[dict[str, Any]] = [
    {
        "pre_text": ["Revenue grew .", "It is in millions ."],
        "post_text": ["Nothing else ."],
        "filename": "ABC/2019/page_1.pdf",
        "table_ori": [["", "2019", "2018"], ["Revenue", "114.46", "100"]],
        "table": [["", "2019", "2018"], ["revenue", "114.46", "100"]],
        "qa": {
            "question": "what was the growth rate of revenue?",
            "answer": "14.5%",
            "exe_ans": 0.1446,
            "program": "subtract(114.46, 100), divide(#0, 100)",
            "gold_inds": {"table_1": "the revenue ...", "text_1": "It is in millions ."},
        },
        "id": "ABC/2019/page_1.pdf-1",
    },
    {
        "pre_text": ["Revenue grew .", "It is in millions ."],
        "post_text": ["Nothing else ."],
        "table": [["", "2019", "2018"], ["revenue", "114.46", "100"]],
        "qa": {
            "question": "was revenue higher in 2019?",
            "answer": "",
            "exe_ans": "yes",
            "program": "greater(114.46, 100)",
            "gold_inds": {"text_2": "Nothing else ."},
        },
        "id": "ABC/2019/page_1.pdf-2",
    },
]


def write_json(path: Path, content: Any) -> Path:
    """Write a JSON file, packed if its name ends in ``.gz``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
