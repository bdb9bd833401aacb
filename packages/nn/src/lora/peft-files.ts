// Adapters in the files of Hugging Face PEFT: adapter_config.json, and adapter_model.safetensors,
// whose tensors have PEFT's prefix before the Hub's names. The caller reads and writes the files.

import { checkOptions, FLAG, oneOf, optional, TEXT } from '../check-options.js';
import { FormatError } from '../errors.js';
import type { HostTensor, LazyTensor } from '../host-tensor.js';
import type { LoraConfig } from './apply-lora.js';

const PREFIX = 'base_model.model.';
const FACTOR = /^(.+)\.(lora_[AB])\.weight$/;

/**
 * What adapter_config.json says about the adapters. It does not say which layers have one: those
 * are the layers that adapter_model.safetensors has weights for.
 */
export interface PeftConfig {
  readonly rank: number;
  readonly alpha: number;
  readonly dropout: number;
  /** The ends of the adapted layers' paths, as the file lists them; empty where it has no list. */
  readonly targets: readonly string[];
  /** The names of modules that were trained whole, where there are any. */
  readonly modulesToSave?: readonly string[];
  /** The base model's name or directory, as the file has it. */
  readonly base: string | undefined;
  /** The base model's branch, tag or commit on the Hub, where the file has one. */
  readonly revision: string | undefined;
}

/** Fields that would change the computation, each with the values under which it does not. */
const FIXED: Readonly<Record<string, readonly unknown[]>> = {
  peft_type: ['LORA'],
  bias: ['none'],
  use_dora: [false],
  use_rslora: [false],
  lora_bias: [false],
  use_qalora: [false],
  layers_to_transform: [null],
  layers_pattern: [null],
  layer_replication: [null],
  exclude_modules: [null],
  trainable_token_indices: [null],
  target_parameters: [null],
  megatron_config: [null],
  corda_config: [null],
  eva_config: [null],
  alora_invocation_tokens: [null],
  // PiSSA, OLoRA, CorDA and LoftQ change the base weights as well, so their adapters fit only those
  // changed weights. They are refused.
  init_lora_weights: [true, false, 'gaussian', 'eva', 'orthogonal'],
};
/**
 * Fields that change nothing once the adapters have their values, and those that PeftConfig holds.
 */
const HARMLESS: ReadonlySet<string> = new Set([
  ...['r', 'lora_alpha', 'lora_dropout', 'target_modules', 'base_model_name_or_path'],
  ...['task_type', 'inference_mode', 'revision', 'auto_mapping', 'modules_to_save'],
  ...['fan_in_fan_out', 'loftq_config', 'rank_pattern', 'alpha_pattern', 'megatron_core'],
  ...['runtime_config', 'peft_version', 'qalora_group_size', 'ensure_weight_tying', 'arrow_config'],
]);

/** Modules that were trained whole beside adapters, which the caller reads as well. */
export interface PeftOptions {
  /**
   * Their names, such as a classifier's 'classifier' or 'score'. Any other is refused. Default
   * none.
   */
  readonly modulesToSave?: readonly string[] | undefined;
}

/**
 * Reads the text of adapter_config.json. A field that is null or an empty object or list is passed
 * over.
 * @throws {FormatError} for text that is not a JSON object, for a rank, alpha or dropout out of
 * range, and for a field that is unknown or asks for a computation that LoraLinear does not do
 */
export function parsePeftConfig(text: string, options: PeftOptions = {}): PeftConfig {
  const { modulesToSave: known = [] } = options;
  const fields = parseObject(text);
  const { modules_to_save: saved } = fields;
  const modulesToSave = Array.isArray(saved) ? saved.map(String) : [];
  if (!modulesToSave.every((name) => known.includes(name)) || typeof saved === 'string') {
    refuse('modules_to_save', saved, known.length === 0 ? 'null' : `among ${known.join(', ')}`);
  }
  for (const [name, value] of Object.entries(fields)) {
    if (HARMLESS.has(name)) {
      continue;
    }
    const allowed = FIXED[name];
    const isEmpty = typeof value === 'object' && Object.keys(value ?? {}).length === 0;
    if (allowed?.includes(value) === true || (isEmpty && name !== 'peft_type')) {
      continue;
    }
    const expected = allowed === undefined ? 'no such field' : JSON.stringify(allowed[0]);
    refuse(name, value, expected);
  }
  for (const name of ['rank_pattern', 'alpha_pattern']) {
    if (Object.keys(fields[name] ?? {}).length > 0) {
      refuse(name, fields[name], 'one rank and alpha for all layers');
    }
  }
  const { r: rank, lora_alpha: alpha, lora_dropout: dropout = 0, target_modules: targets } = fields;
  if (!Number.isSafeInteger(rank) || (rank as number) < 1) {
    refuse('r', rank, 'a whole number of at least 1');
  }
  if (typeof alpha !== 'number' || !(alpha > 0)) {
    refuse('lora_alpha', alpha, 'a number above 0');
  }
  if (typeof dropout !== 'number' || !(dropout >= 0 && dropout < 1)) {
    refuse('lora_dropout', dropout, 'a number in [0, 1)');
  }
  const { base_model_name_or_path: base, revision } = fields;
  return {
    rank: rank as number,
    alpha,
    dropout,
    targets: Array.isArray(targets) ? targets.map(String) : [],
    ...(modulesToSave.length > 0 && { modulesToSave }),
    base: typeof base === 'string' ? base : undefined,
    revision: typeof revision === 'string' ? revision : undefined,
  };
}

/**
 * The text of an adapter_config.json that PEFT reads. Its target_modules are the last parts of the
 * adapted layers' paths.
 */
export function peftConfigText(
  config: LoraConfig,
  options: {
    /** The base model's directory or name on the Hub. */
    readonly base?: string;
    /** The commit of a base model on the Hub. Default none, which means the newest one. */
    readonly revision?: string | undefined;
    /** Whether the layers store their weights [in, out], as GPT-2's do. Default false. */
    readonly fanInFanOut?: boolean;
    /**
     * 'FEATURE_EXTRACTION' for an encoder, whose rows are the result, 'SEQ_CLS' for a classifier.
     * Default 'CAUSAL_LM'.
     */
    readonly taskType?: 'CAUSAL_LM' | 'FEATURE_EXTRACTION' | 'SEQ_CLS';
  } = {},
): string {
  checkOptions('peftConfigText', options, {
    base: optional(TEXT),
    revision: optional(TEXT),
    fanInFanOut: optional(FLAG),
    taskType: optional(oneOf('CAUSAL_LM', 'FEATURE_EXTRACTION', 'SEQ_CLS')),
  });
  const targets = [...new Set(config.layers.map((path) => path.split('.').at(-1)!))];
  const fields = {
    peft_type: 'LORA',
    task_type: options.taskType ?? 'CAUSAL_LM',
    base_model_name_or_path: options.base ?? null,
    revision: options.revision ?? null,
    r: config.rank,
    lora_alpha: config.alpha,
    lora_dropout: config.dropout,
    target_modules: targets,
    bias: 'none',
    fan_in_fan_out: options.fanInFanOut ?? false,
    inference_mode: true,
    init_lora_weights: true,
    use_dora: false,
    use_rslora: false,
    modules_to_save: config.modulesToSave?.map((path) => path.split('.').at(-1)) ?? null,
    layers_to_transform: null,
    layers_pattern: null,
    rank_pattern: {},
    alpha_pattern: {},
  };
  return `${JSON.stringify(fields, undefined, 2)}\n`;
}

/**
 * The adapters among a model's tensors, and the tensors of modules that were trained whole, under
 * PEFT's names: the content of adapter_model.safetensors.
 */
export function peftState<T extends HostTensor | LazyTensor>(
  state: ReadonlyMap<string, T>,
  options: PeftOptions = {},
): Map<string, T> {
  const adapters = [...state].filter(([name]) => FACTOR.test(name) || isSaved(name, options));
  return new Map(adapters.map(([name, values]) => [PREFIX + name, values]));
}

/**
 * The tensors of adapter_model.safetensors under the model's own names.
 * @throws {FormatError} for a tensor that is neither a factor of an adapter nor of a module that
 * the options name, and for a factor without its partner
 */
export function readPeftState<T extends HostTensor | LazyTensor>(
  tensors: ReadonlyMap<string, T>,
  options: PeftOptions = {},
): Map<string, T> {
  const state = new Map<string, T>();
  for (const [name, values] of tensors) {
    const path = name.startsWith(PREFIX) ? name.slice(PREFIX.length) : name;
    if (!FACTOR.test(path) && !isSaved(path, options)) {
      throw new FormatError(
        `adapter_model.safetensors: expected lora_A and lora_B weights alone, got '${name}'. Layers that were trained whole (modules_to_save) and are not asked for, and other kinds of adapters are not read.`,
      );
    }
    state.set(path, values);
  }
  for (const path of peftLayers(state)) {
    for (const factor of ['lora_A', 'lora_B']) {
      if (!state.has(`${path}.${factor}.weight`)) {
        throw new FormatError(
          `adapter_model.safetensors: expected lora_A and lora_B of '${path}', got one of them.`,
        );
      }
    }
  }
  return state;
}

/** Whether a tensor belongs to one of the modules that were trained whole. */
function isSaved(name: string, { modulesToSave = [] }: PeftOptions): boolean {
  return modulesToSave.some((path) => `.${name}`.includes(`.${path}.`));
}

/** The paths of the layers that a state has adapters for. */
export function peftLayers(state: ReadonlyMap<string, unknown>): string[] {
  return [...new Set([...state.keys()].flatMap((name) => FACTOR.exec(name)?.[1] ?? []))];
}

function parseObject(text: string): Readonly<Record<string, unknown>> {
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch (error) {
    throw new FormatError('adapter_config.json: expected JSON.', { cause: error });
  }
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) {
    throw new FormatError('adapter_config.json: expected an object.');
  }
  return parsed as Readonly<Record<string, unknown>>;
}

function refuse(name: string, value: unknown, expected: string): never {
  throw new FormatError(
    `adapter_config.json: expected ${name} to be ${expected}, got ${JSON.stringify(value)}. Only plain LoRA is read.`,
  );
}
