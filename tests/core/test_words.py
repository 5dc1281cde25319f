"""Words and estimated tokens of texts in any script."""

from __future__ import annotations

from pathlib import Path

import llama_index.core
import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.core.texts import estimate_tokens, split_words, token_weight, word_spans

TEXTS = {
    "English": "A full refund is possible up to two weeks before the journey, but we keep a fee of "
    "ten percent. One week before, only half of it is paid back.",
    "German": "Bis zwei Wochen vor der Reise erstatten wir den vollen Preis, behalten aber eine "
    "Gebühr von zehn Prozent. Eine Woche vorher gibt es nur noch die Hälfte zurück.",
    "Czech": "Dva týdny před cestou je možné vrácení celé částky, ponecháváme si však poplatek "
    "deset procent. Týden předem vracíme pouze polovinu.",
    "Russian": "Полный возврат возможен за две недели до поездки, но мы удерживаем комиссию в "
    "десять процентов. Неделей раньше возвращается только половина.",
    "Greek": "Πλήρης επιστροφή χρημάτων είναι δυνατή έως δύο εβδομάδες πριν από το ταξίδι, αλλά "
    "κρατάμε δέκα τοις εκατό. Μία εβδομάδα πριν επιστρέφεται μόνο το μισό.",
    "Arabic": "يمكن استرداد المبلغ كاملا حتى أسبوعين قبل الرحلة، لكننا نحتفظ برسوم قدرها عشرة في "
    "المئة. قبل أسبوع واحد يعاد النصف فقط.",
    "Hindi": "यात्रा से दो सप्ताह पहले तक पूरा पैसा वापस मिल सकता है, लेकिन हम दस प्रतिशत शुल्क रखते "
    "हैं। एक सप्ताह पहले केवल आधा पैसा लौटाया जाता है।",
    "Chinese": "出发前两周可以办理全额退款，但我们会收取百分之十的手续费。出发前一周只能退一半。",
    "Japanese": "出発の二週間前までは全額払い戻しができますが、十パーセントの手数料がかかります。",
    "Korean": "출발 이 주 전까지는 전액 환불이 가능하지만 십 퍼센트의 수수료를 받습니다. 일주일 "
    "전부터는 절반만 환불됩니다.",
    "Thai": "สามารถขอเงินคืนเต็มจำนวนได้จนถึงสองสัปดาห์ก่อนการเดินทาง แต่เราจะหักค่าธรรมเนียมร้อยละสิบ",
}


@pytest.mark.parametrize("language", TEXTS)
def test_estimates_are_near_what_tokenizers_count(
    language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(llama_index.core.__file__).parent / "_static" / "tiktoken_cache"
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(folder))
    text = TEXTS[language]
    counts = [
        len(tiktoken.get_encoding(name).encode(text)) for name in ("cl100k_base", "o200k_base")
    ]
    mean = sum(counts) / 2
    assert 0.65 * mean < estimate_tokens(text) < 1.6 * mean


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 1), ("abcd", 1), ("abcde", 2), ("入门版", 3), ("é" * 6, 3), ("\ud800", 1)],
)
def test_estimated_tokens(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Question: don't  3.14\n", ["Question:", "don't", "3.14"]),
        ("问题：请问Paris多少", ["问", "题", "：", "请", "问", "Paris", "多", "少"]),
        ("パリ行きのツアー", ["パリ", "行", "き", "の", "ツアー"]),
        ("ร้านเปิด", ["ร้", "า", "น", "เ", "ปิ", "ด"]),
        ("환불이 가능합니까?", ["환불이", "가능합니까?"]),
        ("foo\u3000bar", ["foo", "bar"]),
        ("", []),
    ],
)
def test_words(text: str, parts: list[str]) -> None:
    assert split_words(text) == parts


@given(st.text() | st.text("aé 中ก่パ：\n"))
def test_words_are_all_of_a_text_but_white_space(text: str) -> None:
    spans = list(word_spans(text))
    assert [text[begin:end] for begin, end in spans] == split_words(text)
    assert "".join(split_words(text)) == "".join(text.split())
    assert len(text) / 4 <= token_weight(text) <= 1.5 * len(text)
