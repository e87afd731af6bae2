"""Texts on which the loss of a quantized model is measured: short and long, plain and odd, in several languages."""

from __future__ import annotations

from typing import Final

__all__ = ["SAMPLES"]

_LONG: Final = (
    "A server receives requests of many clients at once, and each of them asks for a little work. It puts what has "
    "come into one batch, because a processor multiplies matrices faster than it multiplies vectors, and sends every "
    "client its own rows back. The longer it waits, the larger the batch and the later the answers; so it does not "
    "wait at all, but takes what has come while the last batch was computed."
)

SAMPLES: Final = (
    "How do I reset my password?",
    "What is the capital of Australia?",
    "Canberra is the capital of Australia.",
    "The weather is lovely today.",
    "It is so sunny outside!",
    "He drove to the stadium.",
    "The stock fell by three percent after the quarterly report.",
    "def add(a, b): return a + b",
    "SELECT name FROM customers WHERE country = 'FR' ORDER BY name",
    "best running shoes for flat feet",
    "flight from Berlin to Lisbon in May",
    "Error 404: page not found",
    "Please find attached the invoice for March.",
    "I would like to cancel my subscription, and have the rest of the fee paid back.",
    "A recipe for bread: flour, water, salt, yeast, and patience.",
    "The mitochondrion is the powerhouse of the cell.",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.",
    "The court dismissed the appeal on procedural grounds.",
    "Take one tablet twice a day, with food.",
    "She plays the violin in an orchestra that tours every summer.",
    "The train to Lyon leaves from platform 7 at 14:32.",
    "Great phone, terrible battery. Two stars.",
    "The best film that I have seen this year!",
    "cheap", "?", "3.14159", "GPU",
    "https://example.org/search?q=vector+database&page=2",
    "e-mail@example.org wrote on 2024-02-29 at 23:59",
    "Où est la bibliothèque la plus proche ?",
    "Wie wird das Wetter morgen in München?",
    "El gato duerme sobre la mesa de la cocina.",
    "Il treno per Roma è in ritardo di venti minuti.",
    "Как приготовить борщ?",
    "今日はとても暑いですね。",
    "这家餐厅的面条非常好吃。",
    "हम कल बाज़ार जाएंगे।",
    "مرحبا بكم في مدينتنا",
    "🙂 thanks a lot 🚀",
    _LONG,
    " ".join([_LONG] * 2),
)  # fmt: skip
