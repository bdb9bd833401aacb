// Turns flags, each valid by itself, into one run: defaults that depend on other flags, files that
// must exist, and the rules between flags. Every complaint is a sentence that tells what to do.

import { existsSync, statSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join, resolve } from 'node:path';
import { MAX_THREADS } from '@shardweave/tensor-core';
import { absoluteData } from '../data/data-parts.js';
import { headOf } from '../data/known-labels.js';
import { openData } from '../data/open-data.js';
import { type PrepareOptions, prepareTokens } from '../data/prepare-tokens.js';
import { cacheDirectory } from '../data/token-cache.js';
import { TOKENIZER_FILE } from '../data/tokenizer.js';
import type { DeviceChoice } from '../device-choice.js';
import { UsageError } from '../errors.js';
import { isGgufFile } from '../files/gguf-model.js';
import { hasSaves, savesOf } from '../files/save-directory.js';
import { refuseIdle } from '../flags/flag-effects.js';
import {
  DEFAULT_DECAY,
  DEFAULT_EVAL_ANSWERS,
  DEFAULT_EVAL_BATCHES,
  DEFAULT_EVAL_EVERY,
  DEFAULT_KEEP,
  DEFAULT_LORA_RANK,
  DEFAULT_LR,
  DEFAULT_SEQ_AT_MOST,
  DEFAULT_STEPS,
  DEFAULT_WARMUP,
  type Flags,
  isAdapted,
} from '../flags/train-flags.js';
import { findAdapter, readAdapter } from '../model/adapter-directory.js';
import { findModelDirectory } from '../model/model-directory.js';
import { isPresetName, PRESETS, type PresetName } from '../model/presets.js';
import { configFor, ownHead, readTextModel } from '../model/text-model.js';
import { meantPath } from '../nearest.js';
import { isModulePath, textHash } from '../own-model/module-text.js';
import type { LoraRun, ModelSource, RunConfig, TokenizerName } from '../run-config.js';
import {
  type FirstWeights,
  findFirstWeights,
  modelOfSave,
  requireFitting,
  requireSameShape,
} from '../saves/first-weights.js';
import { isLanguage, isPreference, resolveHead } from '../task/task-head.js';
import {
  countParameters,
  isEncoder,
  longestTextRow,
  type TextConfig,
  type TrainedConfig,
  textConfig,
} from '../task/text-config.js';
import { requireBaseFiles, withElastic } from './elastic-flags.js';
import { GPT2_VOCABULARY, moduleTokenizer, resolveModule } from './resolve-module.js';

const DEFAULT_RANKS = 2;
const LARGE_PARAMETERS = 10_000_000;

export interface ResolveOptions extends Partial<PrepareOptions> {
  /** The processor's cores. Default: those of this machine. */
  readonly cores?: number;
}

/**
 * The run that the flags describe. It reads a model's config.json and, with --epochs alone, makes
 * the tokens of the data, because the number of steps depends on them.
 * @throws {UsageError} where flags contradict each other, the model or the files
 */
export async function resolveConfig(
  typed: Flags,
  { cores = availableParallelism(), entry = '', ...prepare }: ResolveOptions = {},
): Promise<RunConfig> {
  const given = withElastic(typed);
  const isAlone = given.strategy === 'single' || given.strategy === 'offload';
  const ranks = given.ranks ?? (isAlone ? 1 : DEFAULT_RANKS);
  if (isAlone && ranks > 1) {
    throw new UsageError(
      `--strategy ${given.strategy} runs on one rank, got --ranks ${ranks}. Use --strategy fsdp, or --ranks 1.`,
    );
  }
  const named = modelSource(given.model);
  const module = named.kind === 'module' ? await resolveModule(given, named) : undefined;
  // A module that has rows to evaluate on is what --valid names.
  const flags = module?.rows?.valid === undefined ? given : { ...given, valid: given.model };
  refuseIdle(flags);
  checkTogether(flags);
  const lora = await resolveLora(flags);
  const first = await firstWeights(flags);
  const isOfFirst = first?.kind === 'save' && flags.model === flags.initFrom;
  const asked = isOfFirst ? modelOfSave(first) : named;
  if (module && first?.kind === 'model') {
    throw new UsageError(
      `--init-from: ${flags.initFrom} is a model directory, and ${flags.model} is a module, whose weights lie in saves. Give a save or a run of it.`,
    );
  }
  if (module && flags.evalTask !== undefined) {
    throw new UsageError(
      `--eval-task ${flags.evalTask}: ${flags.model} is a module, of which nobody knows whether it writes text. Leave it out.`,
    );
  }
  const model = first?.kind === 'model' ? await modelOfFirst(first.path, asked, lora) : asked;
  requireBaseFiles(flags, model);
  const { modelConfig, head } = module
    ? ({ modelConfig: module, head: { kind: 'module' } } as const)
    : await resolveText(flags, { model, lora });
  const seq = module?.seq ?? rowLength(flags, textConfig(modelConfig));
  const { task } = flags;
  // They become adapters and steps.
  const { loraRank, loraAlpha, loraDropout, loraTargets, baseType, adapter, epochs, ...rest } =
    flags;
  const { pooling: _, ...kept } = rest;
  const run = {
    ...kept,
    ...absolutePaths(flags),
    firstSave: first?.kind === 'save' ? first.path : undefined,
    ranks,
    device: devicesByRank(flags.device, ranks),
    threads: flags.threads ?? Math.min(MAX_THREADS, Math.max(1, Math.floor(cores / ranks))),
    model,
    modelConfig,
    head,
    lora,
    tokenizer: module
      ? moduleTokenizer(flags)
      : tokenizerName(flags, model, textConfig(modelConfig)),
    evalEvery: flags.evalEvery ?? DEFAULT_EVAL_EVERY,
    evalBatches: flags.evalBatches ?? DEFAULT_EVAL_BATCHES,
    evalAnswers: flags.evalAnswers ?? (flags.evalTask && DEFAULT_EVAL_ANSWERS),
    seq,
    lr: flags.lr ?? defaultLearningRate(modelConfig, { task, model, lora }),
    final: flags.final ?? (flags.patience && flags.out ? 'best' : 'last'),
    keep: flags.keep ?? DEFAULT_KEEP,
  };
  if (first?.kind === 'save') {
    requireFitting(first, run);
  }
  if (flags.minLr > run.lr) {
    throw new UsageError(
      `--min-lr ${flags.minLr} is above --lr ${run.lr}. Give a lower one, or a higher --lr.`,
    );
  }
  const steps = await numSteps(flags, run, { ...prepare, entry });
  return { ...run, steps, ...resolveSchedule(flags, steps) };
}

/** The model that the flags name, or the files of one, and the head that their task puts on it. */
async function resolveText(
  { task, dropout, pooling }: Flags,
  { model, lora }: { readonly model: ModelSource; readonly lora: LoraRun | undefined },
): Promise<Pick<RunConfig, 'modelConfig' | 'head'>> {
  const { config: found, own } =
    model.kind === 'preset'
      ? { config: PRESETS[model.name as PresetName].config, own: {} }
      : await readTextModel(model.path);
  const modelConfig = withDropout(configFor(task, found), dropout);
  const head = await ownHead(own, lora?.directory);
  return { modelConfig, head: resolveHead({ task, pooling }, modelConfig, head) };
}

/** The paths of a run, which goes on from any directory. */
function absolutePaths({ data, valid, initFrom, offloadDir, trace, out, resume, cache }: Flags) {
  const absolute = (path: string | undefined) => (path === undefined ? path : resolve(path));
  return {
    data: absoluteData(data),
    valid: absoluteData(valid),
    initFrom: absolute(initFrom),
    offloadDir: absolute(offloadDir),
    trace: absolute(trace),
    out: absolute(out),
    resume: resume === 'auto' ? resume : absolute(resume),
    cache: cacheDirectory(cache, process.env),
  };
}

/** @throws {UsageError} where two flags say the same, or one of them what the other rules out */
function checkTogether(flags: Flags): void {
  const { deviceBudget, slices, valid, validFraction, final, resume, maxRestarts, transport } =
    flags;
  if (deviceBudget !== undefined && slices !== undefined) {
    throw new UsageError(
      '--device-budget chooses how many slices there are, got --slices too. Give one of them.',
    );
  }
  if (valid !== undefined && validFraction !== undefined) {
    throw new UsageError(
      `--valid ${valid} and --valid-fraction ${validFraction} both say what to evaluate on. Give one of them.`,
    );
  }
  if (final === 'best' && valid === undefined && validFraction === undefined) {
    throw new UsageError(
      '--final best, but there is nothing to evaluate on. Give --valid or --valid-fraction, or leave it out.',
    );
  }
  checkTask(flags);
  checkGroups(flags);
  const { initFrom, adapter } = flags;
  const other = adapter === undefined ? (resume === 'auto' ? undefined : resume) : adapter;
  if (initFrom !== undefined && other !== undefined) {
    throw new UsageError(
      `--init-from ${initFrom} and ${adapter === undefined ? '--resume' : '--adapter'} ${other} both say what the run begins with. Give one of them.`,
    );
  }
  if (resume === 'auto' && flags.out === undefined) {
    throw new UsageError(
      '--resume auto looks for saves under --out, which is not given. Give the --out of the run.',
    );
  }
  if (maxRestarts > 0 && transport === 'mpi') {
    throw new UsageError(
      '--max-restarts: what started the ranks ends them all with the first that dies, so start it again with --resume auto. Leave --max-restarts out, or use --transport ws.',
    );
  }
}

/** @throws {UsageError} where a task can't have what the flags say */
function checkTask({ task, gradAccum, batch, strategy, ranks, data, ...flags }: Flags): void {
  if (task !== 'lm' && data === undefined) {
    throw new UsageError(
      `--task ${task} learns from examples, and --data is not given. Give JSON lines, CSV, TSV or Parquet of them.`,
    );
  }
  if (task === 'dpo' && !isAdapted(flags)) {
    throw new UsageError(
      '--task dpo compares the model with what it is without its adapters, and there are none. Give --lora-rank 16, or use --task orpo, which needs no reference.',
    );
  }
  if (task !== 'embed') {
    return;
  }
  if (gradAccum > 1) {
    throw new UsageError(
      `--grad-accum ${gradAccum}: the texts of a micro-step would be compared with each other alone. Leave it out; --chunk-size limits memory at any --batch.`,
    );
  }
  const most = ranks ?? (strategy === 'single' || strategy === 'offload' ? 1 : DEFAULT_RANKS);
  if (batch % most !== 0) {
    throw new UsageError(
      `--batch ${batch} pairs on ${most} ranks: each takes as many as the others. Give a multiple of ${most}.`,
    );
  }
}

/** @throws {UsageError} where a step can't be groups of rows */
function checkGroups({ gradientGroups: groups, ...flags }: Flags): void {
  const { batch, gradAccum, products, strategy, task } = flags;
  if (groups === undefined) {
    return;
  }
  const refuse = (why: string) => {
    throw new UsageError(`--gradient-groups ${groups} ${why}`);
  };
  if (groups > batch) {
    refuse(`of --batch ${batch} rows: each has one at least. Give at most ${batch}.`);
  }
  if (gradAccum > 1) {
    refuse(
      `and --grad-accum ${gradAccum} both cut a step. Leave --grad-accum out: a rank computes one group after the other.`,
    );
  }
  if (products === 'native') {
    refuse(
      'is for one sum on any machine, and --products native has those of this one. Leave --products out.',
    );
  }
  if (strategy === 'offload') {
    refuse('is for --strategy single, fsdp or ddp, got offload. Use one of them, or leave it out.');
  }
  if (task === 'embed') {
    refuse(
      'and --task embed: the texts of a group would be compared with each other alone. Leave it out.',
    );
  }
}

/**
 * The number of steps, all of which an epoch of the data may decide. The rows of the first epoch
 * count, though documents take another number in an order of their own.
 */
async function numSteps(
  { steps, epochs }: Flags,
  config: Parameters<typeof openData>[0] & Parameters<typeof prepareTokens>[0],
  options: PrepareOptions,
): Promise<number> {
  if (epochs === undefined) {
    return steps ?? DEFAULT_STEPS;
  }
  if (steps !== undefined) {
    throw new UsageError(
      `--steps ${steps} and --epochs ${epochs} both say how long the run is. Give one of them.`,
    );
  }
  const tokens = await prepareTokens(config, options);
  const head = await headOf(config, tokens);
  await using data = await openData({ ...config, head }, tokens);
  return Math.max(1, Math.ceil((epochs * data.train.size.rows) / config.batch));
}

/** Resolves warm-up and decay, which together may not be longer than the run. */
function resolveSchedule(
  { schedule, warmup: given, decaySteps }: Flags,
  steps: number,
): Pick<RunConfig, 'warmup' | 'decaySteps'> {
  const { most, part } = DEFAULT_WARMUP;
  const usual = Math.min(most, Math.max(1, Math.round(part * steps)));
  const warmup = given ?? (schedule === 'constant' ? 0 : usual);
  if (schedule !== 'wsd') {
    return { warmup, decaySteps: undefined };
  }
  const asked = decaySteps ?? DEFAULT_DECAY;
  const numSteps = asked < 1 ? Math.max(1, Math.round(asked * steps)) : asked;
  if (numSteps > steps) {
    throw new UsageError(
      `--decay-steps ${numSteps} is more than all ${steps} steps. Give fewer, or more --steps.`,
    );
  }
  return { warmup, decaySteps: numSteps };
}

/** What --init-from means; undefined where a run goes on from its own saves without it. */
async function firstWeights({ initFrom, resume, out }: Flags): Promise<FirstWeights | undefined> {
  const isOver = resume === 'auto' && out !== undefined && hasSaves(savesOf(out));
  return initFrom === undefined || (isOver && !existsSync(initFrom))
    ? undefined
    : await findFirstWeights(initFrom);
}

/**
 * The model directory that --init-from is, as the run's own.
 * @throws {UsageError} where --model is another one, and beside adapters
 */
async function modelOfFirst(
  path: string,
  asked: ModelSource,
  lora: LoraRun | undefined,
): Promise<ModelSource> {
  if (lora !== undefined) {
    throw new UsageError(
      `--init-from: ${path} holds a whole model, and adapters are trained beside one. Give it as --model.`,
    );
  }
  const config = await shapeOf(asked);
  const model: ModelSource = { kind: 'directory', path, hasWeights: true };
  requireSameShape(path, await shapeOf(model), config);
  return model;
}

async function shapeOf(model: ModelSource): Promise<TextConfig> {
  return model.kind === 'preset'
    ? PRESETS[model.name as PresetName].config
    : (await readTextModel(model.path)).config;
}

function modelSource(model: string): ModelSource {
  if (isPresetName(model)) {
    return { kind: 'preset', name: model };
  }
  const path = resolve(model);
  if (isModulePath(model) && existsSync(path) && !statSync(path).isDirectory()) {
    return { kind: 'module', path, sha256: textHash(path) };
  }
  const directory = findModelDirectory(path);
  if (directory !== undefined) {
    return { kind: 'directory', ...directory };
  }
  if (isModulePath(model)) {
    throw new UsageError(
      `--model ${model}: there is no file ${path}. Give the path of a module, from the folder in which the command runs.`,
    );
  }
  throw new UsageError(
    `--model ${model} is neither a preset (${Object.keys(PRESETS).join(', ')}) nor a directory, nor a GGUF file, nor a module (.mjs, .js or .ts). A model of the Hub is org/name, such as Qwen/Qwen3-0.6B.${meantPath(model)} See --help.`,
  );
}

/** @throws {UsageError} for rows that are longer than the model's positions */
export function rowLength({ seq }: Partial<Pick<Flags, 'seq'>>, modelConfig: TextConfig): number {
  const positions = longestTextRow(modelConfig);
  const length = seq ?? Math.min(positions, DEFAULT_SEQ_AT_MOST);
  if (length > positions) {
    throw new UsageError(
      `--seq ${length} is beyond the model's ${positions} positions. Use --seq ${positions} or less, or another --model.`,
    );
  }
  return length;
}

/** @throws {UsageError} where the model's own tokenizer is asked for and it has none */
export function tokenizerName(
  { tokenizer }: Partial<Pick<Flags, 'tokenizer'>>,
  model: ModelSource,
  { vocab_size }: TextConfig,
): TokenizerName {
  const isOwn =
    model.kind === 'directory' &&
    (isGgufFile(model.path) || existsSync(join(model.path, TOKENIZER_FILE)));
  if (tokenizer === 'model' && !isOwn) {
    const name = model.kind === 'preset' ? model.name : model.path;
    throw new UsageError(
      `--tokenizer model: expected a directory with ${TOKENIZER_FILE}, got --model ${name}. Put the model's own there, or choose --tokenizer byte or gpt2.`,
    );
  }
  return tokenizer ?? (isOwn ? 'model' : vocab_size >= GPT2_VOCABULARY ? 'gpt2' : 'byte');
}

/**
 * The adapters that flags ask for: new ones, or those of a directory, which tells their rank and
 * targets.
 */
async function resolveLora(flags: Flags): Promise<LoraRun | undefined> {
  const { loraRank, loraAlpha, loraDropout, loraTargets, baseType, adapter } = flags;
  if (adapter !== undefined) {
    const asked = {
      '--lora-rank': loraRank,
      '--lora-alpha': loraAlpha,
      '--lora-targets': loraTargets,
    };
    const given = Object.entries(asked).find(([, value]) => value !== undefined)?.[0];
    if (given !== undefined) {
      throw new UsageError(
        `--adapter: ${adapter} says what its adapters are, got ${given} too. Leave that out, or train new ones.`,
      );
    }
    const directory = findAdapter(adapter);
    const { rank, alpha, dropout, layers, modulesToSave } = await readAdapter(directory);
    if (isLanguage(flags.task) && modulesToSave !== undefined) {
      throw new UsageError(
        `--adapter: ${adapter} holds the adapters of a classifier. Give --task classify or rerank, or adapters of a language model.`,
      );
    }
    return { rank, alpha, dropout: loraDropout ?? dropout, targets: layers, baseType, directory };
  }
  const asked = [loraRank, loraAlpha, loraDropout, loraTargets, baseType];
  if (asked.every((value) => value === undefined)) {
    return undefined;
  }
  const rank = loraRank ?? DEFAULT_LORA_RANK;
  return {
    rank,
    alpha: loraAlpha ?? 2 * rank,
    dropout: loraDropout ?? 0,
    targets: loraTargets ?? 'all-linear',
    baseType,
    directory: undefined,
  };
}

/** The config with all of the model's dropouts set to `p`. */
function withDropout(config: TextConfig, p: number | undefined): TextConfig {
  if (p === undefined) {
    return config;
  }
  if (isEncoder(config)) {
    return { ...config, hidden_dropout_prob: p, attention_probs_dropout_prob: p };
  }
  return config.model_type === 'gpt2'
    ? { ...config, embd_pdrop: p, attn_pdrop: p, resid_pdrop: p }
    : { ...config, attention_dropout: p };
}

function defaultLearningRate(
  config: TrainedConfig,
  { task, model, lora }: Pick<RunConfig, 'task' | 'model' | 'lora'>,
): number {
  const isWhole = lora === undefined || isPreference(task);
  const isTuned = model.kind === 'directory' && model.hasWeights && isWhole;
  if (task !== 'lm' && isTuned) {
    return DEFAULT_LR.tuned; // larger steps would undo what the model has learnt
  }
  return countParameters(config) < LARGE_PARAMETERS ? DEFAULT_LR.small : DEFAULT_LR.large;
}

function devicesByRank(list: readonly DeviceChoice[], ranks: number): readonly DeviceChoice[] {
  if (list.length === 1) {
    return Array.from({ length: ranks }, () => list[0]!);
  }
  if (list.length === ranks) {
    return list;
  }
  throw new UsageError(
    `--device ${list.join(',')} names ${list.length} devices for ${ranks} ranks. Name one, or one a rank.`,
  );
}
