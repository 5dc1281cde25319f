"""Questions that are not in English: how they are recognised, and what of their words counts.

Of German, French, Spanish, Italian and Portuguese, polite phrases, number words and units are
known. All other words must be the same, in the same order: in these languages, negations, endings
and the order of words carry too much to be guessed at. Of other languages nothing is known, so the
whole text must be the same.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

from .question_lexicon import is_english_word
from .question_reading import TOKEN
from .question_words import word_set

__all__ = ["is_english", "words_of_other_languages"]

_WORD = re.compile(r"[^\W\d_]+")

_ENGLISH = word_set(
    "the of to is are was were what when where which who whom whose why how does did do and for "
    "with my your you can could should would will this that it have has had be been not from by at "
    "if there their they we our or but than then these those its about into any"
)
_OTHERS = word_set(
    # German
    "der das ein eine einen einem einer eines und ist sind waren wird werden wurde wurden wie wo "
    "wer wen wem wann warum weshalb wieso welche welcher welches welchen wieviel kann kannst "
    "können könnte muss müssen soll sollte darf nicht kein keine keinen keiner mit ohne für auf "
    "aus bei nach vom zum zur ich du er sie es wir ihr mein meine meinen meinem meiner dein deine "
    "haben hatte dem des im oder aber wenn viel viele gibt mir mich auch noch nur vor zwischen "
    "über unter alle einige dauert bedeutet heißt kostet kosten macht habt "
    # French
    "les une et est sont où qui que quoi quel quelle quels quelles comment pourquoi quand combien "
    "je tu il elle nous vous ils elles mon ma mes ton ta tes ses leur ce cette ces dans avec sans "
    "aux ne pas jamais aucun aucune puis dois peut peux faire fait signifie tous toutes certains "
    "coûtent coûte "
    # Spanish
    "el los las una unos unas es está están qué cómo cuándo dónde quién cuál cuánto cuántos "
    "cuánta cuántas por sin del al en mi su como cuando donde quien cual cuanto puedo puede hay "
    "debo tengo ningún ninguna algún todos todas "
    # Italian
    "lo gli uno di sono che cosa quando dove chi quale quanto quanti perché senza della dei delle "
    "alla nel nella mio mia ho ha posso può devo più meno nessun nessuna tutti tutte alcuni "
    # Portuguese
    "os um uma são onde quem qual quantos quantas com sem dos das em na não há meu minha pode "
    "nenhum nenhuma ao aos"
)
"""Words that are frequent in these languages, and hardly ever in questions in English."""

_POLITE = re.compile(
    r"\b(?:guten (?:morgen|tag|abend)|hallo|bitte|danke(?: schön)?|vielen dank"
    r"|(?:kannst du|können sie) mir (?:bitte )?sagen"
    r"|bonjour|bonsoir|salut|merci(?: beaucoup| d'avance)?|s'il (?:vous|te) pla[iî]t|svp"
    r"|est-ce que|pouvez-vous me dire"
    r"|hola|buenos días|buenas tardes|por favor|gracias|(?:puedes|puede) decirme"
    r"|ciao|buongiorno|buonasera|per favore|per piacere|grazie(?: mille)?|(?:puoi|può) dirmi"
    r"|olá|oi|bom dia|boa tarde|obrigad[oa]|(?:pode|podes) (?:me )?dizer(?:-me)?)(?!\w)"
    r"|\best-ce qu'",
    re.IGNORECASE,
)
_FORMAL = word_set("Sie Ihr Ihre Ihren Ihrem Ihrer Ihnen")
"""Words of German that are others in lower case."""


def _same(table: str) -> dict[str, str]:
    lines = (line.split() for line in re.sub(r"\n +", " ", table.strip()).splitlines())
    return {word: first for first, *words in lines for word in words}


_SAME = _same(
    """
0 null zéro cero zero
2 zwei deux dos due dois duas
3 drei trois tres tre três
4 vier quatre cuatro quattro quatro
5 fünf cinq cinco cinque
6 sechs six seis
7 sieben sept siete sette sete
8 acht huit ocho otto oito
9 neun nueve nove
10 zehn dix diez dieci dez
11 elf onze undici
12 zwölf douze doce dodici doze
13 dreizehn treize trece tredici treze
14 vierzehn catorce quattordici catorze
15 fünfzehn quinze quince quindici
16 sechzehn seize dieciséis sedici dezesseis dezasseis
17 siebzehn dix-sept diecisiete diciassette dezessete dezassete
18 achtzehn dix-huit dieciocho diciotto dezoito
19 neunzehn dix-neuf diecinueve diciannove dezenove dezanove
20 zwanzig vingt veinte venti vinte
30 dreißig trente treinta trenta trinta
40 vierzig quarante cuarenta quaranta quarenta
50 fünfzig cinquante cincuenta cinquanta cinquenta
60 sechzig soixante sesenta sessanta sessenta
70 siebzig setenta settanta
80 achtzig ochenta ottanta oitenta
90 neunzig noventa novanta
100 hundert cent cien cento cem
1000 tausend mille mil
km kilometer kilometern kilomètre kilomètres kilómetro kilómetros chilometro chilometri quilômetro
    quilômetros quilómetro quilómetros
cm zentimeter zentimetern centimètre centimètres centímetro centímetros centimetro centimetri
mm millimeter millimetern millimètre millimètres milímetro milímetros millimetro millimetri
kg kilogramm kilogramme kilogrammes kilogramo kilogramos chilogrammo chilogrammi quilograma
    quilogramas
% prozent
€ euro euros eur
que qué
como cómo
cuando cuándo
donde dónde
quien quién
cual cuál
cuanto cuánto
"""
)
"""Number words, units and question words, and one way to write each."""

_MOSTLY = 0.5
_SOME = 0.3


@lru_cache(4_096)
def is_english(text: str) -> bool:
    """Return whether a question is in English, as far as its words show."""
    words = [word for word in _WORD.findall(text.lower()) if len(word) > 1]
    letters = "".join(words)
    if not letters:
        return not any(map(_is_foreign, text))
    if sum(map(_is_foreign, letters)) > _SOME * len(letters):
        return False
    english = sum(word in _ENGLISH for word in words)
    others = sum(word in _OTHERS for word in words)
    if english or others:
        return english > others
    return sum(map(is_english_word, words)) >= _MOSTLY * len(words)


def _is_foreign(letter: str) -> bool:
    """Return whether a character is a letter, and not a Latin one."""
    if letter.isascii() or not letter.isalpha():
        return False
    return not unicodedata.name(letter, "").startswith("LATIN")


def words_of_other_languages(text: str) -> tuple[str, ...]:
    """Return what must be the same of a question that is not in English."""
    words = _WORD.findall(text.lower())
    if any(map(_is_foreign, text)) or _OTHERS.isdisjoint(words):
        return (" ".join(text.split()).rstrip("?.\u3002\uff1f "),)
    return tuple(_known_words(_POLITE.sub(" ", text)))


def _known_words(text: str) -> Iterator[str]:
    for match in TOKEN.finditer(text):
        word = match[0]
        # A capital at the beginning of a word says nothing, for which German has most.
        if word[1:].islower() or len(word) == 1:
            word = word if word in _FORMAL else word.lower()
        for part in word.split("'"):
            if part:
                yield _SAME.get(part, part)
