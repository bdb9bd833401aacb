// The fields of a config.json. Each one belongs to the model, is known to change nothing, or is
// refused by name. A field that were silently ignored could mean that the file describes another
// model.

import { FormatError } from '../../errors.js';

export type ConfigFields = Readonly<Record<string, unknown>>;

/**
 * Fields that change nothing here, whatever they say: names, dtypes, how other programs run the
 * model, and how text is generated with it.
 */
const HARMLESS: ReadonlySet<string> = new Set([
  ...['torch_dtype', 'dtype', 'transformers_version', 'transformers.js_config', 'tokenizer_class'],
  ...['use_cache', 'return_dict', 'output_attentions', 'output_hidden_states', 'torchscript'],
  ...['attn_implementation', 'gradient_checkpointing', 'pretraining_tp', 'tp_plan', 'is_decoder'],
  ...['is_llama_config', 'unsloth_fixed', 'unsloth_version', 'unk_token_id', 'sep_token_id'],
  ...['decoder_start_token_id', 'id2label', 'label2id', 'problem_type', 'task_specific_params'],
  ...['finetuning_task', 'max_length', 'min_length', 'max_new_tokens', 'do_sample', 'use_bfloat16'],
  ...['temperature', 'top_k', 'top_p', 'typical_p', 'repetition_penalty', 'length_penalty'],
  ...['num_beams', 'early_stopping', 'num_return_sequences', 'no_repeat_ngram_size'],
  ...['suppress_tokens', 'chunk_size_feed_forward'],
]);

/**
 * Whether a field changes nothing for what it is. A name like _commit_hash is a program's note to
 * itself. And a field that a later version knows, such as use_gates, is off in the files of models
 * from before it.
 */
function changesNothing(name: string, value: unknown): boolean {
  const isEmpty = typeof value === 'object' && value !== null && Object.keys(value).length === 0;
  return HARMLESS.has(name) || name.startsWith('_') || !value || isEmpty;
}

/**
 * Fields that would change the computation of any model here, each with the value under which they
 * do not.
 */
const FIXED: ConfigFields = { is_encoder_decoder: false, add_cross_attention: false };

export interface FieldRules {
  /** The classes in `architectures` whose weights and computation are the model's. */
  readonly architectures: readonly string[];
  /** The fields that the model computes with. */
  readonly own: ReadonlySet<string>;
  /** Fields that would change the computation, each with the value under which they do not. */
  readonly fixed: ConfigFields;
  /** Whether another field, with its value, changes nothing. */
  isHarmless(name: string, value: unknown): boolean;
}

/**
 * Picks the model's own fields. One that is null counts as absent, so its default holds.
 * @throws {FormatError} naming a field that is unknown, or that asks for a computation that the
 * model does not do
 */
export function ownFields(fields: ConfigFields, rules: FieldRules): Record<string, unknown> {
  const fixed: ConfigFields = { ...FIXED, ...rules.fixed };
  const own: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(fields)) {
    if (value === null) {
      continue;
    }
    if (name === 'architectures') {
      requireArchitectures(value, rules.architectures);
      continue;
    }
    if (rules.own.has(name)) {
      own[name] = value;
    } else if (Object.hasOwn(fixed, name)) {
      requireFixed(name, value, fixed[name]);
    } else if (!changesNothing(name, value) && !rules.isHarmless(name, value)) {
      refuse(`no ${name}`, value);
    }
  }
  return own;
}

/** A class with another head, or of another family, has a config of the same model_type. */
function requireArchitectures(value: unknown, known: readonly string[]): void {
  const isKnown = Array.isArray(value) && value.every((name) => known.includes(name));
  if (!isKnown) {
    refuse(`architectures to be ${known.join(' or ')}`, value);
  }
}

function requireFixed(name: string, value: unknown, expected: unknown): void {
  const text = JSON.stringify(expected);
  if (JSON.stringify(value) !== text) {
    refuse(`${name} to be ${text}`, value);
  }
}

function refuse(expected: string, value: unknown): never {
  throw new FormatError(
    `config.json: expected ${expected}, got ${JSON.stringify(value)}. A model that computes something else is not supported.`,
  );
}
