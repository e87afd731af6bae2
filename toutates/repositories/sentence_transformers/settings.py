"""Reading config.json so that no setting is passed over: each is taken, known to change nothing, or refused by name."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from toutates.system.errors import ConfigurationError
from toutates.system.text import shown

__all__ = ["Settings"]

#: Settings that matter to training, to generating text, or to how transformers returns what it has computed.
_WITHOUT_EFFECT: Final = """
    _attn_implementation _attn_implementation_autoset _commit_hash _name_or_path architectures attention_dropout
    attention_probs_dropout_prob attn_implementation bad_words_ids begin_suppress_tokens bos_token_id
    chunk_size_feed_forward classifier_dropout cls_token_id decoder_start_token_id deterministic_flash_attn
    directionality diversity_penalty do_sample dropout dtype early_stopping embedding_dropout
    encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id gradient_checkpointing hidden_dropout_prob id2label
    initializer_cutoff_factor initializer_range label2id length_penalty max_length min_length mlp_dropout
    model_type name_or_path no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences
    output_attentions output_hidden_states output_past output_scores pooler_fc_size pooler_num_attention_heads
    pooler_num_fc_layers pooler_size_per_head pooler_type prefix problem_type qa_dropout reference_compile
    remove_invalid_values repad_logits_with_grad repetition_penalty return_dict return_dict_in_generate
    sbert_ce_default_activation_function sentence_transformers sep_token_id seq_classif_dropout
    sinusoidal_pos_embds sparse_pred_ignore_index sparse_prediction summary_activation summary_first_dropout
    summary_proj_to_labels summary_type summary_use_proj suppress_tokens task_specific_params temperature
    tf_legacy_loss tie_encoder_decoder tie_weights_ tokenizer_class top_k top_p torch_dtype torchscript
    transformers_version typical_p unpad_inputs use_bfloat16 use_cache
"""
#: Where they are true or not empty, another model is computed than the one that is written.
_REFUSED: Final[Mapping[str, str]] = {
    "is_decoder": "the model is a decoder",
    "add_cross_attention": "the model attends to another one",
    "cross_attention_hidden_size": "the model attends to another one",
    "is_encoder_decoder": "the model has a decoder",
    "pruned_heads": "attention heads are left out",
    "quantization_config": "the weights are quantized",
    "auto_map": "the model is computed by Python code of its own",
}


class Settings:
    """The settings of config.json, and which of them have been taken.

    Args:
        source: the file, for errors.
        document: what it says.
        ignored: settings that the operator says change nothing.
    """

    def __init__(self, source: Path, document: Mapping[str, Any], ignored: Collection[str] = ()) -> None:
        self.source, self._document = source, document
        self._known = {*_WITHOUT_EFFECT.split(), *ignored}
        for key, what in _REFUSED.items():
            if key in document and key not in ignored and document[key]:
                raise self.refused(key, f"cannot be converted: {what}", "convert the model by --with-optimum")
            self._known.add(key)

    def __contains__(self, key: str) -> bool:
        return self._document.get(key) is not None

    def refused(self, key: str, problem: str, remedy: str) -> ConfigurationError:
        """The error to raise for a setting that cannot be used."""
        value = self._document.get(key)
        given = None if value is None else shown(str(value))
        return ConfigurationError(problem, source=self.source, key=key, value=given, remedy=remedy)

    def value(self, key: str) -> Any:
        """A setting as it is; None where it is not set."""
        self._known.add(key)
        return self._document.get(key)

    def text(self, key: str, default: str, among: Collection[str] = ()) -> str:
        """A setting's text.

        Raises:
            ConfigurationError: it is none, or is not ``among`` these, where any are given.
        """
        value = self.value(key)
        if value is None:
            value = default
        if not isinstance(value, str) or (among and value not in among):
            raise self.refused(key, "cannot be converted", f"known are {', '.join(sorted(among))}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A setting's positive number.

        Raises:
            ConfigurationError: it is none, or is missing and has no default.
        """
        value = self.value(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.refused(key, "is no positive number", "download or save the file again")
        return float(value)

    def integer(self, key: str, default: int | None = None, lowest: int = 1, highest: int = 2**31 - 1) -> int:
        """A setting's whole number.

        Raises:
            ConfigurationError: it is none, is out of bounds, or is missing and has no default.
        """
        value = self.value(key)
        if value is None:
            value = default
        if type(value) is not int or not lowest <= value <= highest:
            raise self.refused(key, f"is no whole number from {lowest} to {highest}", "download or save the file again")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A setting that is true or false.

        Raises:
            ConfigurationError: it is neither.
        """
        value = self.value(key)
        if value is None:
            value = default
        if not isinstance(value, bool):
            raise self.refused(key, "is neither true nor false", "download or save the file again")
        return value

    def require_all_known(self) -> None:
        """Refuse settings that nothing has taken and that are not known to change nothing.

        Raises:
            ConfigurationError: there is one. Those that are null, false or empty switch nothing on, and may stay.
        """
        for key in sorted(self._document.keys() - self._known):
            if self._document[key] not in (None, False, [], {}, ""):
                raise self.refused(
                    shown(key),
                    "is not known for this architecture",
                    "if it changes nothing that the model computes, add --ignore-key NAME",
                )
