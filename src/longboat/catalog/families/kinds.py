"""Says what kind of model a config describes, where it cannot be planned as a decoder of texts."""

from __future__ import annotations

from longboat.catalog.formats.config_fields import Fields
from longboat.core.errors import UserInputError

__all__ = ("refuse_other_kinds",)

ENCODERS = (
    *(
        "bert",
        "roberta",
        "xlm-roberta",
        "xlm-roberta-xl",
        "camembert",
        "electra",
        "deberta",
        "deberta-v2",
        "modernbert",
    ),
    *(
        "distilbert",
        "albert",
        "mpnet",
        "ernie",
        "megatron-bert",
        "nomic_bert",
        "roformer",
        "rembert",
        "big_bird",
        "xmod",
    ),
    *("roc_bert", "data2vec-text", "roberta-prelayernorm", "neobert", "eurobert", "new", "jina_bert", "longformer"),
    *(
        "esm",
        "convbert",
        "squeezebert",
        "mobilebert",
        "funnel",
        "fnet",
        "nystromformer",
        "mra",
        "yoso",
        "lilt",
        "layoutlm",
    ),
    *("clip", "siglip", "siglip2", "vit", "dinov2", "wav2vec2", "hubert", "luke", "flaubert", "xlm", "bert-generation"),
    *("esmc", "gte", "ibert", "jina_embeddings_v3", "modernvbert", "neomme", "perceiver", "tapas"),
)
ENCODER_DECODERS = (
    *("t5", "mt5", "umt5", "longt5", "bart", "mbart", "pegasus", "pegasus_x", "bigbird_pegasus", "whisper", "marian"),
    *("m2m_100", "led", "blenderbot", "blenderbot-small", "prophetnet", "switch_transformers", "nllb-moe", "fsmt"),
    *("plbart", "mvp", "t5gemma", "t5gemma2", "encoder-decoder", "vision-encoder-decoder", "seamless_m4t", "trocr"),
    *("seamless_m4t_v2", "speech_to_text", "speecht5", "moonshine", "udop", "pix2struct", "florence2", "musicgen"),
    *("nougat", "musicgen_melody", "donut-swin", "canary", "cohere_asr", "dia", "pop2piano", "speech-encoder-decoder"),
)
RECURRENT = {
    "rwkv": "a recurrent model (RWKV)",
    "rwkv6": "a recurrent model (RWKV)",
    "rwkv7": "a recurrent model (RWKV)",
    "xlstm": "a recurrent model (xLSTM)",
    "recurrent_gemma": "a hybrid of recurrence and windows (Griffin)",
    "retnet": "a recurrent model (RetNet)",
    "hyena": "a model of long convolutions (Hyena)",
    "stripedhyena": "a hybrid of long convolutions and attention (Hyena)",
}
UNREAD = {
    "blt": "a model of bytes with an encoder and decoder of its own",
    "doge": "a decoder whose experts are retrieved by product keys",
    "jetmoe": "a decoder whose attention is a mixture of experts too",
    "longcat_flash": "a decoder with two attentions a layer and experts that compute nothing",
    "zamba": "a hybrid whose Mamba has several heads",
    "zaya": "a decoder with convolutions in its attention",
    "reformer": "a decoder with reversible layers",
    "xlnet": "a decoder of permutations",
    "prophetnet": "a decoder of several next tokens",
    "blip": "a model that describes images, with cross-attention to them",
    "git": "a model that describes images, made of layers of BERT",
    "idefics": "a decoder with cross-attention to images",
    "kosmos-2": "a decoder of texts and places in images",
    "kosmos-2.5": "a decoder of texts and places in images",
    "kyutai_speech_to_text": "a decoder of sounds with a codec of its own",
    "pi0": "a policy for robots",
    "vibevoice": "a model that speaks, with a decoder of sounds",
}
HINT = "the headers of its weights can be counted: give a folder with its safetensors files, or a GGUF file"


def refuse_other_kinds(whole: Fields, text: Fields) -> None:
    """Raise UserInputError, which names the kind, where a model is not a decoder of texts whose layers are read."""
    for fields in (whole, text):
        kind = fields.word("model_type")
        if kind in ENCODERS:
            raise UserInputError(
                f"{kind} is an encoder: it generates no text", hint="serve it with task: embed; " + HINT
            )
        if kind in ENCODER_DECODERS or fields.flag("is_encoder_decoder"):
            raise UserInputError(
                f"{kind or 'the model'} is an encoder-decoder: only decoders are planned",
                hint="plan a decoder of the same size, or measure this model on one accelerator",
            )
        if kind in RECURRENT:
            raise UserInputError(f"{kind} is {RECURRENT[kind]}, which the engines here do not serve", hint=HINT)
        if kind in UNREAD:
            raise UserInputError(f"{kind} is {UNREAD[kind]}: its config is not read", hint=HINT)
