// The lines before the first step, which tell what will run, and where.

import type { DataSize } from '../data/dataset.js';
import { numMicroSteps } from '../data/row-order.js';
import { formatBytes, formatCount } from '../format.js';
import { hubNameOf } from '../hub/hub-name.js';
import { libraryOf } from '../numeric-class.js';
import type { RankReady } from '../rank/events.js';
import { type LoraRun, type RunConfig, savesAtStop } from '../run-config.js';
import { isPreference, type TaskHead, type TrainedHead } from '../task/task-head.js';
import { countParameters, isEncoder, type TrainedConfig } from '../task/text-config.js';

/** Beyond it a model that is tuned remembers its data rather than learns from it. */
const MANY_EPOCHS = 20;

/** The lines as `name  value`. `ready` is that of all ranks, in rank order. */
export function headerLines(config: RunConfig, ready: readonly RankReady[]): string[] {
  return linesOf(headerRows(config, ready));
}

/**
 * The lines above a plan, which tell for what model, rows and device its bytes and times are.
 * `description` is the text of a backend, such as `wasm relaxed simd, 2 threads`, and `leaves` what
 * the run would leave.
 */
export function planHeaderLines(
  config: RunConfig,
  { description, leaves }: { readonly description: string; readonly leaves: string },
): string[] {
  return linesOf([
    ['model', modelText(config)],
    ['data', config.data ?? 'Moby Dick'],
    ['step', `${stepText(config)}, ${config.precision}`],
    ['device', `${config.device[0]} (${description}), shared by all ranks`],
    ['leaves', leaves],
  ]);
}

/** A name and a value. */
type Row = [string, string];

function linesOf(rows: readonly Row[]): string[] {
  return rows.map(([name, value]) => `${name.padEnd(7)} ${value}`);
}

/** The same as pairs. */
export function headerRows(config: RunConfig, ready: readonly RankReady[]): Row[] {
  const { modelConfig } = config;
  const shards = ready.map((rank) => rank.shardBytes);
  const sharding =
    config.strategy === 'fsdp'
      ? `, ${config.reshard ? 'reshard' : 'no reshard'} after forward`
      : '';
  const rows: Row[] = [
    ['model', modelText(config)],
    [
      'params',
      `${formatCount(countParameters(modelConfig))} (${countParameters(modelConfig).toLocaleString('en')}), shard of a rank ${formatBytes(Math.max(...shards))}`,
    ],
    [
      'world',
      `${config.ranks} rank${config.ranks === 1 ? '' : 's'}, ${config.strategy} over ${config.transport}, ${config.precision}${sharding}`,
    ],
    ...deviceRows(ready),
    ...processRows(config, ready),
    [
      'data',
      hasOwnRows(config)
        ? `the module's own: ${sizeText(ready[0]?.data)}, ${config.order}`
        : `${config.data ?? 'Moby Dick'}: ${sizeText(ready[0]?.data)} (${config.tokenizer}), ${config.order}${config.trainOnPrompt ? ', prompts count' : ''}`,
    ],
    ...partRows(config, ready[0]?.data),
    ...validRows(config, ready[0]?.valid),
    ['step', `${stepText(config)}${epochsText(config, ready[0]?.data)}`],
    [
      'adamw',
      `lr ${config.lr} ${config.schedule}${config.minLr === 0 ? '' : ` to ${config.minLr}`}${config.decaySteps === undefined ? '' : ` (${config.decaySteps} steps of decay)`}, warm-up ${config.warmup}${config.warmup > config.steps ? ' (longer than the run)' : ''}, weight decay ${config.weightDecay}, betas ${config.beta1} ${config.beta2}, clip ${config.clip === 0 ? 'off' : config.clip}, seed ${config.seed}`,
    ],
  ];
  return [...rows, ...notedRows(config, ready).filter((row) => row !== false)];
}

/** The labels that differ by case alone, which is often one label in two spellings. */
function likeLabels(head: TrainedHead): string[] {
  const byLower = new Map<string, string[]>();
  for (const label of head.kind === 'classify' ? head.labels : []) {
    const lower = label.toLowerCase();
    const same = byLower.get(lower) ?? [];
    same.push(label);
    byLower.set(lower, same);
  }
  return [...byLower.values()]
    .filter(({ length }) => length > 1)
    .map((same) => `the labels ${same.join(' and ')} are different ones, by case alone`);
}

/** What not every run has. */
function notedRows(config: RunConfig, ready: readonly RankReady[]): (Row | false)[] {
  const { model, lora, strategy, batch, ranks, offloadDir } = config;
  const head = ready[0]?.head ?? config.head;
  const epochs = epochsOf(config, ready[0]?.data) ?? 0;
  const times = formatEpochs(epochs).replace(/ epochs$/, '');
  const classes = numericClassesOf(ready);
  const synced = strategy === 'ddp' ? ', and rank 0 sends its weights to all after each step' : '';
  return [
    epochs > MANY_EPOCHS && [
      'note',
      `each row is learnt ${times} times, and a model then knows it by heart: --epochs 3 is usual`,
    ],
    ...likeLabels(head).map((text): Row => ['note', text]),
    head.kind !== 'lm' && head.kind !== 'module' && ['task', taskText(config, head)],
    config.firstSave !== undefined && [
      'init',
      `the weights of ${config.firstSave}, and nothing else of it`,
    ],
    lora !== undefined && ['lora', loraText(lora)],
    model.kind === 'directory' &&
      !model.hasWeights && ['weights', 'random ones: there are no weights beside config.json'],
    strategy === 'fsdp' &&
      (config.cpuOffload || offloadDir !== undefined) && [
        'offload',
        `shards at rest in ${offloadDir ?? 'host memory'}`,
      ],
    strategy === 'offload' && ['offload', offloadText(config)],
    config.checkpointActivations && ['memory', 'activations are recomputed in backward'],
    ranks > batch && [
      'note',
      `ranks from ${batch} on have none of a step's ${batch} rows, and compute nothing: --batch ${ranks} gives each one`,
    ],
    classes.length > 1 && [
      'note',
      `ranks compute in ${classes.length} numeric classes (${classes.join('; ')}): another division of the ranks has other bits${synced}`,
    ],
    ...librariesOf(classes).map(
      (library): Row => [
        'bits',
        `of this machine: products by ${library}; --products wasm has those of every machine`,
      ],
    ),
    config.injectDelayMs > 0 && ['delay', `${config.injectDelayMs} ms in every collective`],
    config.sampleEvery !== undefined && ['texts', `every ${config.sampleEvery} steps`],
    config.onStep !== undefined && ['on-step', config.onStep],
    config.out !== undefined && ['out', config.out],
    ['saves', savesText(config)],
    config.final === 'best' && ['final', 'the weights of the best evaluation, saved until then'],
  ];
}

function modelText(config: RunConfig): string {
  return `${modelName(config)}: ${shapeText(config.modelConfig)}`;
}

function hasOwnRows({ modelConfig }: RunConfig): boolean {
  return modelConfig.model_type === 'module' && modelConfig.rows !== undefined;
}

function stepText(config: RunConfig): string {
  const microSteps = numMicroSteps(config);
  const { head, batch, seq, gradientGroups: groups } = config;
  const isGrouped = groups !== undefined;
  const most = microSteps > 1 ? `, up to ${microSteps} a rank` : '';
  const cut = isGrouped ? ` in ${groups} groups${most}` : ` in ${microSteps} micro-steps`;
  const parts = isGrouped || microSteps > 1 ? cut : '';
  const reduced = !isGrouped && microSteps > 1 && !config.sync ? ', reduced once' : '';
  if (hasOwnRows(config)) {
    return `${batch} rows${parts}${reduced}`;
  }
  const isOfTexts = 'labels' in head || head.kind === 'embed';
  const what = isOfTexts
    ? 'examples, texts of up to'
    : isPreference(head.kind)
      ? 'pairs, answers with prompts of up to'
      : 'rows of';
  return `${batch} ${what} ${seq} tokens${parts}${reduced}`;
}

/** The libraries that compute products, each once. */
function librariesOf(classes: readonly string[]): string[] {
  return [...new Set(classes.flatMap((numericClass) => libraryOf(numericClass) ?? []))];
}

/** The classes of all ranks, each once, in the order of the first rank that has it. */
export function numericClassesOf(ready: readonly RankReady[]): string[] {
  return [...new Set(ready.map((rank) => rank.numericClass))];
}

function savesText(config: RunConfig): string {
  const { out, saveEvery, keep } = config;
  if (out === undefined) {
    return 'none, and no model is left: there is no --out';
  }
  if (saveEvery === undefined) {
    return savesAtStop(config)
      ? 'at Ctrl-C alone; --save-every 5m saves for a crash, too'
      : 'none while it runs; --save-every 5m makes some';
  }
  const { steps, minutes } = saveEvery;
  const [count, unit] = minutes === undefined ? [steps, 'step'] : [minutes, 'minute'];
  const every = count === 1 ? `each ${unit}` : `every ${count} ${unit}s`;
  return `${every}, the newest ${keep} and the best are kept`;
}

function taskText(config: RunConfig, head: TaskHead): string {
  if (!('pooling' in head) && !('labels' in head)) {
    return preferenceText(config, head.kind);
  }
  if (head.kind !== 'embed') {
    const { labels, kind, problemType } = head;
    const several = problemType === 'multi_label_classification' ? ', several at once' : '';
    return kind === 'rerank'
      ? 'rerank: how likely each document answers its query'
      : `classify: ${labels.length} label${labels.length === 1 ? '' : 's'}${several}, ${labels.slice(0, 8).join(', ')}${labels.length > 8 ? ' and so on' : ''}`;
  }
  const { pooling, normalize, prompts = {} } = head;
  const { temperature, symmetric, matryoshkaDims, chunkSize } = config;
  const named = Object.entries(prompts).filter(([, text]) => text !== '');
  const parts = [
    `embed: ${pooling} pooling${normalize ? ' to length 1' : ''}, temperature ${temperature}${symmetric ? ', both ways' : ''}`,
    matryoshkaDims && `also by the first ${matryoshkaDims.join(', ')} numbers`,
    `${chunkSize} texts at once`,
    ...named.map(([name, text]) => `${name} texts begin with ${JSON.stringify(text)}`),
  ];
  return parts.filter((part) => part !== undefined).join(', ');
}

function preferenceText(config: RunConfig, task: TaskHead['kind']): string {
  const { orpoLambda, dpoBeta, labelSmoothing, lora } = config;
  if (task === 'orpo') {
    return `orpo: the chosen answer is learnt, and its odds over the rejected one times ${orpoLambda}`;
  }
  const from = lora?.directory === undefined ? '' : ` that ${lora.directory} begin from`;
  const smoothed = labelSmoothing === 0 ? '' : `, label smoothing ${labelSmoothing}`;
  return `dpo: the reference is the base without the adapters${from}, beta ${dpoBeta}${smoothed}`;
}

function loraText({ rank, alpha, dropout, targets, baseType, directory }: LoraRun): string {
  const where =
    targets === 'all-linear'
      ? 'all linear layers'
      : directory === undefined
        ? targets.join(', ')
        : `${targets.length} layers`;
  const drop = dropout === 0 ? '' : `, dropout ${dropout}`;
  const from = directory === undefined ? '' : `, from ${directory}`;
  const base = baseType === undefined ? '' : `, in ${baseType}`;
  return `rank ${rank}, alpha ${alpha}${drop} on ${where}${from}; all else is frozen${base}`;
}

function offloadText(config: RunConfig): string {
  const { deviceBudget, slices, microBatches, offloadDir } = config;
  const cut =
    deviceBudget === undefined
      ? `${slices ?? 3} slices`
      : `slices for a budget of ${formatBytes(deviceBudget)}`;
  const parts = microBatches === 1 ? '' : `, ${microBatches} micro-batches`;
  return `${cut}${parts}, at rest in ${offloadDir ?? 'host memory'}`;
}

/**
 * The shape of a model, such as `2 layers, width 64, 4 heads, vocabulary 256, dropout 0`; that of a
 * decoder begins with its family.
 */
export function shapeText(config: TrainedConfig): string {
  if (config.model_type === 'module') {
    return `a module, ${config.blocks} blocks`;
  }
  const { vocab_size: vocabulary } = config;
  if (config.model_type === 'gpt2') {
    const { n_layer: layers, n_embd: width, n_head: heads, resid_pdrop: dropout } = config;
    return `${layers} layers, width ${width}, ${heads} heads, vocabulary ${vocabulary}, dropout ${dropout}`;
  }
  if (isEncoder(config)) {
    const { num_hidden_layers, hidden_size, num_attention_heads, hidden_dropout_prob } = config;
    return `${config.model_type}, ${num_hidden_layers} layers, width ${hidden_size}, ${num_attention_heads} heads, vocabulary ${vocabulary}, dropout ${hidden_dropout_prob}`;
  }
  const { num_hidden_layers: layers, hidden_size: width, attention_dropout: dropout } = config;
  const { num_attention_heads: heads, num_key_value_heads: kvHeads } = config;
  const headText = heads === kvHeads ? `${heads} heads` : `${heads} heads over ${kvHeads}`;
  return `${config.model_type}, ${layers} layers, width ${width}, ${headText}, vocabulary ${vocabulary}, dropout ${dropout}`;
}

/** The title of a run, such as `nano, fsdp on 2 ranks, fp32`. */
export function runTitle(config: RunConfig): string {
  const { ranks, strategy, precision } = config;
  return `${modelName(config)}, ${strategy} on ${ranks} rank${ranks === 1 ? '' : 's'}, ${precision}`;
}

function modelName({ model }: RunConfig): string {
  return model.kind === 'preset' ? model.name : (hubNameOf(model.path) ?? model.path);
}

function sizeText(size: DataSize | undefined): string {
  const { tokens, documents, cut, pieces, files, unit = 'documents' } = size ?? NOTHING;
  if (unit === 'rows') {
    return `${formatCount(documents)} rows`;
  }
  const of = documents === 0 ? '' : ` in ${formatCount(documents)} ${unit}`;
  const cuts =
    cut === 0
      ? ''
      : unit === 'examples'
        ? `, ${formatCount(cut)} of them longer than a row and cut at its end`
        : `, ${formatCount(cut)} of them longer than a row and cut in ${formatCount(pieces)} pieces`;
  const from = files === undefined ? '' : ` of ${formatCount(files)} files`;
  return `${formatCount(tokens)} tokens${of}${from}${cuts}`;
}

/** A row for each part of a mixture: how much of all rows it is, and how often it is learnt. */
function partRows({ steps, batch }: RunConfig, size: DataSize | undefined): Row[] {
  return (size?.parts ?? []).map((part) => {
    const epochs = (steps * batch * part.share) / part.rows;
    const share = Number((100 * part.share).toPrecision(3));
    return [
      'part',
      `${share} % of the rows: ${part.name}, ${sizeText(part)}, ${formatEpochs(epochs)} of ${formatCount(part.rows)} rows`,
    ];
  });
}

const NOTHING: DataSize = { tokens: 0, documents: 0, cut: 0, pieces: 0, rows: 0 };

/** How often the run takes each row; undefined where no rank has told of its data. */
function epochsOf({ steps, batch }: RunConfig, size: DataSize | undefined): number | undefined {
  return size === undefined || size.rows === 0 ? undefined : (steps * batch) / size.rows;
}

function epochsText(config: RunConfig, size: DataSize | undefined): string {
  const epochs = epochsOf(config, size);
  const rows = size?.rows ?? 0;
  const times =
    epochs === undefined ? '' : ` = ${formatEpochs(epochs)} of ${formatCount(rows)} rows`;
  return `, ${config.steps.toLocaleString('en')} step${config.steps === 1 ? '' : 's'}${times}`;
}

function formatEpochs(epochs: number): string {
  const text = epochs.toLocaleString('en', {
    ...(epochs < 1
      ? { maximumSignificantDigits: 2 }
      : { maximumFractionDigits: epochs < 10 ? 2 : epochs < 100 ? 1 : 0 }),
  });
  return `${text} epoch${text === '1' ? '' : 's'}`;
}

function validRows(
  { valid, validFraction, evalEvery, evalBatches, evalTask, evalAnswers, batch }: RunConfig,
  size: DataSize | undefined,
): Row[] {
  if (size === undefined) {
    return [];
  }
  const from = valid ?? `${validFraction} of the data`;
  const all = Math.ceil(size.rows / batch);
  const part = all > evalBatches ? `, the first ${evalBatches} of ${all} batches` : '';
  const asked = evalTask && `, with at most ${evalAnswers} answers (${evalTask})`;
  return [['valid', `${from}: ${sizeText(size)}${part}, every ${evalEvery} steps${asked ?? ''}`]];
}

/** One row where all ranks have the same device, else one row per rank. */
function deviceRows(ready: readonly RankReady[]): Row[] {
  const names = ready.map((rank) => `${rank.device} (${rank.description})`);
  if (new Set(names).size === 1) {
    return [['device', names[0]!]];
  }
  return names.map((name, rank) => ['device', `rank ${rank}: ${name}`]);
}

/** What a process holds is more than its device: Node, and values on their way to the device. */
function processRows({ transport }: RunConfig, ready: readonly RankReady[]): Row[] {
  const most = Math.max(...ready.map(({ processBytes = 0 }) => processBytes));
  if (most === 0) {
    return [];
  }
  const isApart = transport === 'ws' || transport === 'mpi';
  const whose = isApart ? "in a rank's process" : 'in the process of all ranks';
  return [['memory', `${formatBytes(most)} at most ${whose} while the run was set up`]];
}
