// Adapters as PEFT's directory has them: adapter_config.json, and adapter_model.safetensors with
// PEFT's prefix before the Hub's names. Reading and writing the files themselves is the caller's.

import { FormatError } from '../errors.js';
import type { HostTensor, LazyTensor } from '../host-tensor.js';
import type { LoraConfig } from './apply-lora.js';

const PREFIX = 'base_model.model.';
const FACTOR = /^(.+)\.(lora_[AB])\.weight$/;

/**
 * What adapter_config.json says of the adapters; the layers that have them are those with weights.
 */
export interface PeftConfig {
  readonly rank: number;
  readonly alpha: number;
  readonly dropout: number;
  /** Last parts of the layers' paths. */
  readonly targets: readonly string[];
  /** Where the base model was, as whoever trained the adapters called it. */
  readonly base: string | undefined;
}

/** Fields that would change the computation, with the values that do not. */
const FIXED: Readonly<Record<string, readonly unknown[]>> = {
  peft_type: ['LORA'],
  bias: ['none'],
  use_dora: [false],
  use_rslora: [false],
  lora_bias: [false],
  use_qalora: [false],
  modules_to_save: [null],
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
  // PiSSA, OLoRA, CorDA and LoftQ change the base weights too, and their adapters fit those alone.
  init_lora_weights: [true, false, 'gaussian', 'eva', 'orthogonal'],
};
/** Fields that change nothing once adapters have their values, or that stand in `PeftConfig`. */
const HARMLESS: ReadonlySet<string> = new Set([
  ...['r', 'lora_alpha', 'lora_dropout', 'target_modules', 'base_model_name_or_path'],
  ...['task_type', 'inference_mode', 'revision', 'auto_mapping'],
  ...['fan_in_fan_out', 'loftq_config', 'rank_pattern', 'alpha_pattern', 'megatron_core'],
  ...['runtime_config', 'peft_version', 'qalora_group_size', 'ensure_weight_tying', 'arrow_config'],
]);

/**
 * Reads adapter_config.json.
 * @throws {FormatError} naming a field that asks for what is not computed here, or that nobody
 * knows
 */
export function parsePeftConfig(text: string): PeftConfig {
  const fields = parseObject(text);
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
  const base = fields.base_model_name_or_path;
  return {
    rank: rank as number,
    alpha,
    dropout,
    targets: Array.isArray(targets) ? targets.map(String) : [],
    base: typeof base === 'string' ? base : undefined,
  };
}

/** The text of adapter_config.json. */
export function peftConfigText(
  config: LoraConfig,
  options: {
    /** The base model's directory or name. */
    readonly base?: string;
    /** Whether the layers store their weights [in, out], as GPT-2's do. Default false. */
    readonly fanInFanOut?: boolean;
  } = {},
): string {
  const targets = [...new Set(config.layers.map((path) => path.split('.').at(-1)!))];
  const fields = {
    peft_type: 'LORA',
    task_type: 'CAUSAL_LM',
    base_model_name_or_path: options.base ?? null,
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
    modules_to_save: null,
    layers_to_transform: null,
    layers_pattern: null,
    rank_pattern: {},
    alpha_pattern: {},
  };
  return `${JSON.stringify(fields, undefined, 2)}\n`;
}

/** The adapters of a model's state, under PEFT's names: what adapter_model.safetensors holds. */
export function peftState<T extends HostTensor | LazyTensor>(
  state: ReadonlyMap<string, T>,
): Map<string, T> {
  const adapters = [...state].filter(([name]) => FACTOR.test(name));
  return new Map(adapters.map(([name, values]) => [PREFIX + name, values]));
}

/**
 * The tensors of adapter_model.safetensors under the model's names.
 * @throws {FormatError} for a tensor that is no adapter, and for half an adapter
 */
export function readPeftState<T extends HostTensor | LazyTensor>(
  tensors: ReadonlyMap<string, T>,
): Map<string, T> {
  const state = new Map<string, T>();
  for (const [name, values] of tensors) {
    const path = name.startsWith(PREFIX) ? name.slice(PREFIX.length) : name;
    if (!FACTOR.test(path)) {
      throw new FormatError(
        `adapter_model.safetensors: expected lora_A and lora_B weights alone, got '${name}'. Layers that were trained whole (modules_to_save) and other kinds of adapters are not read.`,
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

/** The paths of the layers that a state has adapters of. */
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
