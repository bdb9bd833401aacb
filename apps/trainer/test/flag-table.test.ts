// What the table says of each flag holds: what another value means for a run that goes on, and
// where a flag has an effect.

import { resolve as absolute } from 'node:path';
import { describe, expect, it } from 'vitest';
import { resolveConfig } from '../src/config/resolve-config.js';
import { UsageError } from '../src/errors.js';
import { keyOf } from '../src/flags/flag.js';
import { idleFlags } from '../src/flags/flag-effects.js';
import { FLAG_NAMES, FLAGS, type Flags } from '../src/flags/train-flags.js';
import { adamW } from '../src/rank/strategies/model-parts.js';
import type { PreparedRun } from '../src/run-config.js';
import { changesOf, requireSameRun, type SavedRun } from '../src/saves/saved-run.js';
import { parseFlags } from './support/parse-flags.js';
import { ROOT } from './support/run-flags.js';

const TINY = `${ROOT}tooling/reference/data/tiny`;
const TEXT = `${TINY}/text.txt`;
const flagsOf = (line: string) => parseFlags(line.split(' ').filter(Boolean), () => {});

async function runOf(line: string): Promise<PreparedRun> {
  const config = await resolveConfig(flagsOf(line), { cores: 2 });
  const directory = `/tokens of ${config.data}`;
  const train = [{ directory, name: config.data, share: 1 }];
  return { ...config, tokens: { train, valid: undefined } };
}

/**
 * The flags of a run that is saved, and of one that goes on with it; then both values, where they
 * are told.
 */
type Change = readonly [was: string, is: string] | readonly [string, string, string, string];

/** What the directory of --adapter says. */
const LORA = { rank: 2, alpha: 4, dropout: 0, targets: 'all-linear', directory: '/other' } as const;
const EVALUATED = '--valid-fraction 0.1';
const EMBED = '--task embed --data a.jsonl';
const DPO = '--task dpo --lora-rank 2 --data a.jsonl';
const ELASTIC =
  '--strategy ddp --elastic --gradient-groups 4 --transport ws --out a --save-every 5';
const SAVED = '--out a --save-every 5';

/** Two values of each flag. */
const CHANGES: Readonly<Record<keyof Flags, Change>> = {
  strategy: ['--strategy fsdp', '--strategy ddp', 'fsdp', 'ddp'],
  ranks: ['--ranks 2', '--ranks 3', '2', '3'],
  transport: ['--transport memory', '--transport ws'],
  elastic: [ELASTIC.replace('--elastic ', ''), ELASTIC],
  minRanks: [ELASTIC, `${ELASTIC} --min-ranks 2`],
  maxRanks: [ELASTIC, `${ELASTIC} --max-ranks 3`],
  listen: [ELASTIC, `${ELASTIC} --listen 10.0.0.1`],
  device: ['--device cpu', '--device webgpu'],
  threads: ['--threads 1', '--threads 2'],
  products: ['--products wasm', '--products native'],
  trace: ['', '--trace b'],
  precision: ['--precision fp32', '--precision bf16', 'fp32', 'bf16'],
  fp32Reduce: ['--precision bf16', '--precision bf16 --fp32-reduce', 'false', 'true'],
  reshard: ['', '--no-reshard'],
  checkpointActivations: ['', '--checkpoint-activations'],
  gatherCap: ['', '--gather-cap 5'],
  injectDelayMs: ['', '--inject-delay-ms 5'],
  cpuOffload: ['', '--cpu-offload'],
  deviceBudget: ['--strategy offload', '--strategy offload --device-budget 50000', 'none', '50000'],
  slices: ['--strategy offload --slices 2', '--strategy offload --slices 4', '2', '4'],
  microBatches: ['--strategy offload', '--strategy offload --micro-batches 2', '1', '2'],
  offloadDir: ['', '--offload-dir b'],
  fresh: ['--offload-dir b', '--offload-dir b --fresh'],
  model: ['--model micro', '--model nano', '128', '64'],
  initFrom: [`--model ${TINY}`, `--init-from ${TINY}`, 'none', TINY],
  dropout: ['--dropout 0', '--dropout 0.5', '0', '0.5'],
  tokenizer: ['--tokenizer byte', '--tokenizer gpt2', 'byte', 'gpt2'],
  data: ['--data a', '--data b', absolute('a'), absolute('b')],
  valid: ['--valid a', '--valid b', absolute('a'), absolute('b')],
  validFraction: ['', EVALUATED, 'none', '0.1'],
  evalEvery: [EVALUATED, `${EVALUATED} --eval-every 5`, '100', '5'],
  evalBatches: [EVALUATED, `${EVALUATED} --eval-batches 5`, '100', '5'],
  evalTask: ['--valid a', '--valid a --eval-task tools'],
  evalAnswers: ['--valid a --eval-task tools', '--valid a --eval-task tools --eval-answers 5'],
  task: ['', `--task classify --data ${TEXT}`, 'lm', 'classify'],
  pooling: [`${EMBED} --pooling cls`, `${EMBED} --pooling mean`, 'cls', 'mean'],
  temperature: [EMBED, `${EMBED} --temperature 0.5`, '0.05', '0.5'],
  symmetric: [EMBED, `${EMBED} --symmetric`, 'false', 'true'],
  negatives: [EMBED, `${EMBED} --negatives 5`, '7', '5'],
  chunkSize: [EMBED, `${EMBED} --chunk-size 5`],
  matryoshkaDims: [EMBED, `${EMBED} --matryoshka-dims 8,4`, 'none', '[8,4]'],
  classWeights: [
    '--task classify --data a.jsonl',
    '--task classify --data a.jsonl --class-weights balanced',
    'none',
    'balanced',
  ],
  dpoBeta: [DPO, `${DPO} --dpo-beta 0.5`, '0.1', '0.5'],
  labelSmoothing: [DPO, `${DPO} --label-smoothing 0.25`, '0', '0.25'],
  orpoLambda: [
    '--task orpo --data a.jsonl',
    '--task orpo --data a.jsonl --orpo-lambda 0.5',
    '0.1',
    '0.5',
  ],
  trainOnPrompt: ['--data a.jsonl', '--data a.jsonl --train-on-prompt', 'false', 'true'],
  cache: ['', '--cache b'],
  order: ['', '--order sequential', 'shuffle', 'sequential'],
  loraRank: ['', '--lora-rank 2', 'none', '2'],
  loraAlpha: ['--lora-alpha 4', '--lora-alpha 8', '4', '8'],
  loraDropout: ['--lora-rank 2', '--lora-rank 2 --lora-dropout 0.5', '0', '0.5'],
  loraTargets: ['--lora-rank 2', '--lora-rank 2 --lora-targets q_proj', 'all-linear', '["q_proj"]'],
  baseType: ['--lora-rank 2', '--lora-rank 2 --base-type q4_K', 'none', 'q4_K'],
  adapter: ['--lora-rank 2', '--lora-rank 2'],
  batch: ['--batch 12', '--batch 6', '12', '6'],
  seq: ['--seq 16', '--seq 8', '16', '8'],
  steps: ['--steps 8', '--steps 9', '8', '9'],
  epochs: [`--data ${TEXT} --epochs 1`, `--data ${TEXT} --epochs 2`],
  gradAccum: ['', '--grad-accum 2', '1', '2'],
  gradientGroups: ['--batch 12', '--batch 12 --gradient-groups 4', 'none', '4'],
  sync: ['--grad-accum 2', '--grad-accum 2 --no-sync', 'true', 'false'],
  lr: ['--lr 0.5', '--lr 0.25', '0.5', '0.25'],
  weightDecay: ['', '--weight-decay 0.5', '0.1', '0.5'],
  beta1: ['', '--beta1 0.5', '0.9', '0.5'],
  beta2: ['', '--beta2 0.5', '0.98', '0.5'],
  eps: ['', '--eps 0.5', '1e-8', '0.5'],
  clip: ['', '--clip 0.5', '1', '0.5'],
  schedule: ['', '--schedule constant', 'cosine', 'constant'],
  minLr: ['', '--min-lr 1e-5', '0', '0.00001'],
  warmup: ['', '--warmup 5', '20', '5'],
  decaySteps: ['--schedule wsd --decay-steps 7', '--schedule wsd --decay-steps 5', '7', '5'],
  patience: [EVALUATED, `${EVALUATED} --patience 2`, 'none', '2'],
  final: [`${SAVED} ${EVALUATED}`, `${SAVED} ${EVALUATED} --final best`, 'last', 'best'],
  timeLimit: ['', '--time-limit 5s'],
  seed: ['', '--seed 2', '1', '2'],
  saveEvery: ['--out a', '--out a --save-every 5'],
  keep: [SAVED, `${SAVED} --keep 5`],
  resume: ['--out a', '--out a --resume auto'],
  maxRestarts: [SAVED, `${SAVED} --max-restarts 2`],
  out: ['--out a', '--out b'],
  dashboard: ['', '--dashboard'],
  check: ['', '--check'],
  logEvery: ['', '--log-every 5'],
  hashEvery: ['', '--hash-every 5'],
  sampleEvery: ['', '--sample-every 5'],
  samplePrompt: ['', '--sample-prompt b'],
  tensorboard: ['--out a', '--out a --tensorboard'],
  onStep: ['', '--on-step cat'],
  quiet: ['', '--quiet'],
};

describe('at a resume', () => {
  it.each(FLAG_NAMES.map((name) => [FLAGS[name].atResume, name] as const))(
    'is %s: another %s',
    async (atResume, name) => {
      const [was, is, ...says] = CHANGES[name];
      expect(says).toHaveLength(atResume === 'free' ? 0 : 2);
      const saved = await runOf(was);
      const tokens = 'tokens of '.concat(String(saved.data)).split('/').at(-1)!;
      const record: SavedRun = {
        ...{ step: 1, updates: 1, numericClasses: [], tokens },
        config: JSON.parse(JSON.stringify(saved)) as Partial<PreparedRun>,
      };
      const own = { ...(await runOf(is)), ...(name === 'adapter' && { lora: LORA }) };
      expect(own).not.toEqual(saved);
      const refusal = () => requireSameRun({ path: 'SAVE', record }, own, undefined);
      const flag = `--${keyOf(name)}`;
      const told = changesOf(record, own).filter((text) => text.startsWith(`${flag} `));
      if (atResume === 'fixed') {
        expect(refusal).toThrow(UsageError);
        const content = { model: 'model (', dropout: 'model (', data: 'data: ' }[name as string];
        expect(refusal).toThrow(`SAVE was saved with another ${content ?? `${flag}: `}`);
        expect(refusal).toThrow(
          new RegExp(`: ${literal(says[0])}(?: \\(.*\\))?, got ${literal(says[1])}[. ]`),
        );
      } else {
        refusal();
      }
      const [before, now] = says;
      expect(told).toEqual(atResume === 'told' ? [`${flag} ${now} (was ${before})`] : []);
    },
  );

  it('a run with other rows, another model or other adapters is another one', () => {
    expect(FLAG_NAMES.filter((name) => FLAGS[name].atResume === 'fixed')).toEqual([
      ...[
        'task',
        'model',
        'dropout',
        'tokenizer',
        'data',
        'validFraction',
        'trainOnPrompt',
        'order',
      ],
      ...['pooling', 'temperature', 'symmetric', 'negatives', 'matryoshkaDims', 'classWeights'],
      ...['dpoBeta', 'labelSmoothing', 'orpoLambda'],
      ...[
        'loraRank',
        'loraAlpha',
        'loraDropout',
        'loraTargets',
        'baseType',
        'batch',
        'seq',
        'gradientGroups',
        'seed',
      ],
    ]);
  });

  it('another task is told before the other shape that it gives a model', async () => {
    const config = await runOf('');
    const record: SavedRun = {
      ...{ step: 1, updates: 1, numericClasses: [], tokens: 'other tokens' },
      config: { ...config, head: { kind: 'embed', pooling: 'mean', normalize: true } },
    };
    const own = { ...config, modelConfig: { ...config.modelConfig, other: 1 } as never };
    expect(() => requireSameRun({ path: 'SAVE', record }, own, undefined)).toThrow(
      'SAVE was saved with another --task: embed, got lm. Give --task as it was, or start',
    );
  });

  it('a run with the same flags is neither refused nor told of', async () => {
    const config = await runOf('');
    const record: SavedRun = {
      ...{ step: 1, updates: 1, numericClasses: [], tokens: 'tokens of undefined', config },
    };
    requireSameRun({ path: 'SAVE', record }, config, undefined);
    expect(changesOf(record, config)).toEqual([]);
  });
});

/** Flags where each changes nothing, and what is said of it. */
const IDLE: readonly (readonly [name: keyof Flags, line: string, says: string])[] = [
  [
    'reshard',
    '--strategy ddp --no-reshard',
    '--no-reshard changes nothing without --strategy fsdp.',
  ],
  [
    'gatherCap',
    '--strategy single --gather-cap 5',
    '--gather-cap changes nothing without --strategy fsdp.',
  ],
  [
    'fp32Reduce',
    '--fp32-reduce',
    '--fp32-reduce changes nothing without --precision fp16 or bf16, and --strategy fsdp or ddp.',
  ],
  [
    'fp32Reduce',
    '--strategy single --fp32-reduce --precision bf16',
    '--fp32-reduce changes nothing without --precision fp16 or bf16, and --strategy fsdp or ddp.',
  ],
  [
    'products',
    '--device webgpu --products native',
    '--products changes nothing without a cpu device.',
  ],
  ['sync', '--no-sync', '--no-sync changes nothing without --grad-accum 2 or more.'],
  [
    'gradAccum',
    '--batch 5 --ranks 2 --grad-accum 4',
    '--grad-accum 4 is more than the 3 rows of a rank.',
  ],
  [
    'ranks',
    '--batch 12 --ranks 5 --gradient-groups 4',
    '--ranks 5 is more than the 4 groups of rows.',
  ],
  [
    'slices',
    '--strategy offload --model nano --slices 100',
    '--slices 100 is more than the 4 layers of the model.',
  ],
  [
    'microBatches',
    '--strategy offload --batch 6 --grad-accum 2 --micro-batches 4',
    '--micro-batches 4 is more than the 3 rows of a micro-step.',
  ],
  [
    'warmup',
    '--warmup 1000 --steps 10',
    '--warmup 1000 is more than the 10 steps of the run, and the rate never gets to --lr.',
  ],
];

/** Flags that are refused where they would change nothing. */
const REFUSED: readonly (readonly [name: keyof Flags, line: string, says: string])[] = [
  ...(
    [
      ['pooling', 'cls'],
      ['temperature', '0.5'],
      ['chunkSize', '5'],
      ['symmetric', ''],
      ['matryoshkaDims', '8'],
    ] as const
  ).map(([name, value]) => {
    const flag = `--${keyOf(name)}`;
    const says = `is for --task embed, got --task lm. Use --task embed, or leave ${flag} out.`;
    return [name, `${flag} ${value}`.trim(), says] as const;
  }),
  ['dpoBeta', '--dpo-beta 0.5', 'is for --task dpo, got --task lm.'],
  [
    'labelSmoothing',
    '--task orpo --data a.jsonl --label-smoothing 0.1',
    'is for --task dpo, got --task orpo.',
  ],
  ['orpoLambda', '--orpo-lambda 0.5', 'is for --task orpo, got --task lm.'],
  ['classWeights', '--class-weights balanced', 'is for --task classify, got --task lm.'],
  ['negatives', '--negatives 5', 'is for --task embed or rerank, got --task lm.'],
  [
    'cpuOffload',
    '--strategy ddp --cpu-offload',
    'is for --strategy fsdp without --offload-dir, got --strategy ddp. Use --strategy fsdp without --offload-dir, or leave --cpu-offload out.',
  ],
  [
    'cpuOffload',
    '--cpu-offload --offload-dir x',
    'is for --strategy fsdp without --offload-dir, got --strategy fsdp --offload-dir x.',
  ],
  [
    'deviceBudget',
    '--device-budget 5',
    'is for --strategy offload, got --strategy fsdp. Use --strategy offload, or leave --device-budget out.',
  ],
  ['slices', '--slices 2', 'is for --strategy offload, got --strategy fsdp.'],
  ['microBatches', '--micro-batches 2', 'is for --strategy offload, got --strategy fsdp.'],
  [
    'offloadDir',
    '--strategy ddp --offload-dir x',
    'is for --strategy offload or fsdp, got --strategy ddp.',
  ],
  [
    'fresh',
    '--fresh',
    'is for --offload-dir, which is not given. Use --offload-dir, or leave --fresh out.',
  ],
  ['evalEvery', '--eval-every 5', 'is for --valid or --valid-fraction, which is not given.'],
  ['evalBatches', '--eval-batches 5', 'is for --valid or --valid-fraction, which is not given.'],
  [
    'evalTask',
    '--eval-task tools',
    'is for --task lm with --valid, which is not given. Use --task lm with --valid, or leave --eval-task out.',
  ],
  [
    'evalTask',
    '--eval-task tools --valid-fraction 0.1',
    'is for --task lm with --valid, got --valid-fraction 0.1.',
  ],
  [
    'evalTask',
    '--eval-task tools --task embed --data a.jsonl --valid b.jsonl',
    'is for --task lm with --valid, got --task embed.',
  ],
  ['evalAnswers', '--valid a --eval-answers 5', 'is for --eval-task, which is not given.'],
  ['patience', '--patience 5', 'is for --valid or --valid-fraction, which is not given.'],
  [
    'trainOnPrompt',
    '--train-on-prompt',
    'is for documents, a file of JSON lines, Parquet, CSV or TSV, got --data (the',
  ],
  ['decaySteps', '--decay-steps 5', 'is for --schedule wsd, got --schedule cosine.'],
  [
    'minLr',
    '--schedule constant --min-lr 1e-5',
    'is for --schedule cosine or wsd, got --schedule constant.',
  ],
  ['final', '--final last', 'is for --out, which is not given.'],
  ['tensorboard', '--tensorboard', 'is for --out, which is not given.'],
  [
    'sampleEvery',
    '--task embed --data a.jsonl --sample-every 5',
    'is for --task lm, dpo or orpo, got --task embed. Use --task lm, dpo or orpo, or leave --sample-every out.',
  ],
  [
    'samplePrompt',
    '--task embed --data a.jsonl --sample-prompt b',
    'is for --task lm, dpo or orpo, got --task embed.',
  ],
  ['saveEvery', '--save-every 5', 'is for --out, which is not given.'],
  ['minRanks', '--min-ranks 2', 'is for --elastic, which is not given.'],
  ['maxRanks', '--max-ranks 2', 'is for --elastic, which is not given.'],
  ['listen', '--listen 10.0.0.1', 'is for --elastic, which is not given.'],
  ['keep', '--out x --keep 5', 'is for --save-every, which is not given.'],
  ['maxRestarts', '--out x --max-restarts 5', 'is for --save-every, which is not given.'],
];

describe('a flag that changes nothing', () => {
  it.each(IDLE)('is told: %s of %s', async (_, line, says) => {
    const flags = flagsOf(line);
    expect(idleFlags(flags, await resolveConfig(flags))).toEqual([says]);
  });

  it.each(REFUSED)('is refused: %s of %s', async (name, line, says) => {
    const refused = resolveConfig(flagsOf(line));
    await expect(refused).rejects.toThrow(UsageError);
    await expect(refused).rejects.toThrow(`--${keyOf(name)} ${says}`);
  });

  it('is each flag that does not apply to all runs', () => {
    const tested = new Set([...IDLE, ...REFUSED].map(([name]) => name));
    const some = FLAG_NAMES.filter((name) => FLAGS[name].appliesTo !== 'all');
    expect(some.filter((name) => !tested.has(name))).toEqual([]);
  });

  it.each([
    '',
    '--no-sync --grad-accum 2 --fp32-reduce --precision bf16',
    '--no-reshard --gather-cap 5',
    '--strategy offload --model nano --slices 4 --micro-batches 4 --batch 4',
    '--warmup 10 --steps 10',
    '--steps 10',
  ])('is none of "%s"', async (line) => {
    const flags = flagsOf(line);
    expect(idleFlags(flags, await resolveConfig(flags))).toEqual([]);
  });
});

it('each flag of the optimizer is an option of it, and vectors have no decay', async () => {
  const line = '--lr 0.5 --beta1 0.25 --beta2 0.75 --eps 0.125 --weight-decay 2';
  const { groups } = adamW([], await resolveConfig(flagsOf(line)));
  const options = { params: [], lr: 0.5, betas: [0.25, 0.75], eps: 0.125 };
  expect(groups).toEqual([
    { ...options, weightDecay: 2 },
    { ...options, weightDecay: 0 },
  ]);
});

function literal(text = ''): string {
  return text.replaceAll(/[.*+?^${}()|[\]\\]/g, '\\$&');
}
