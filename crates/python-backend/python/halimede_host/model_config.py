"""The configuration as `auto_complete_config` sees it."""

import json


class ModelConfig:
    """A configuration that a model completes."""

    def __init__(self, model_config):
        self._model_config = json.loads(model_config)

    def as_dict(self):
        """The configuration; not to be changed."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size):
        """Sets the largest batch; a larger one in the configuration is an error."""
        config = self._model_config
        if config["max_batch_size"] > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {config['max_batch_size']}, but in auto-complete-config "
                f"function for model '{config['name']}' specified max_batch_size {max_batch_size}"
            )
        config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self):
        """Chooses the dynamic batcher; another scheduler in the configuration is an error."""
        config = self._model_config
        for other in ("sequence_batching", "ensemble_scheduling"):
            if other in config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{other}', but auto-complete-config function for "
                    f"model '{config['name']}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy_dict):
        """Sets whether the model is decoupled."""
        name = self._model_config["name"]
        if any(key != "decoupled" for key in transaction_policy_dict):
            raise ValueError(
                f"model transaction property in auto-complete-config function for model '{name}' contains property "
                "other than 'decoupled'."
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" in transaction_policy_dict:
            wanted = transaction_policy_dict["decoupled"]
            if policy.get("decoupled", wanted) != wanted:
                raise ValueError(
                    f"trying to change decoupled property in auto-complete-config for model '{name}', which is "
                    f"already set to '{policy['decoupled']}'."
                )
            policy["decoupled"] = wanted

    def add_input(self, input):
        """Adds an input, or completes the one of its name."""
        known = ["name", "data_type", "dims", "optional"]
        self._add("input", input, known, "'name', 'data_type', 'dims' and 'optional'")

    def add_output(self, output):
        """Adds an output, or completes the one of its name."""
        self._add("output", output, ["name", "data_type", "dims"], "'name', 'data_type' and 'dims'")

    def _add(self, kind, tensor, known, known_text):
        model = self._model_config["name"]
        place = f"in auto-complete-config function for model '{model}'"
        if any(key not in known for key in tensor):
            raise ValueError(f"{kind} '{tensor['name']}' {place} contains property other than {known_text}.")
        if "name" not in tensor:
            raise ValueError(f"{kind} {place} is missing 'name' property.")
        name = tensor["name"]
        for key in ("data_type", "dims"):
            if key not in tensor:
                raise ValueError(f"{kind} '{name}' {place} is missing '{key}' property.")
        for known in self._model_config[kind]:
            if known["name"] == name:
                self._complete(kind, known, tensor)
                return
        self._model_config[kind].append(tensor)

    def _complete(self, kind, known, tensor):
        model, name = self._model_config["name"], tensor["name"]
        if known["data_type"] not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(
                f"unable to load model '{model}', configuration expects datatype {known['data_type']} for {kind} "
                f"'{name}', model provides {tensor['data_type']}"
            )
        for key in ("dims", "optional"):
            differs = key in tensor and key in known and known[key] != tensor[key]
            if differs and (key == "optional" or known[key]):
                raise ValueError(
                    f"model '{model}', tensor '{name}': the model expects {key} {tensor[key]} but the model "
                    f"configuration specifies {key} {known[key]}"
                )
        known.update(tensor)
