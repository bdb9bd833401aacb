// What the flags of a run come to with each other: the values that follow from others, at the ends
// of their ranges too, and the sentences where two can't meet.

import { mkdirSync, writeFileSync } from 'node:fs';
import { resolve as absolute, join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { parse as parseYaml } from 'yaml';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { resolveConfig } from '../src/config/resolve-config.js';
import { resolvedConfig } from '../src/config/resolved-config.js';
import { runWarnings } from '../src/config/run-warnings.js';
import { UsageError } from '../src/errors.js';
import { idleFlags, isRefused } from '../src/flags/flag-effects.js';
import * as kinds from '../src/flags/flag-kinds.js';
import type { RunConfig } from '../src/run-config.js';
import { parseFlags } from './support/parse-flags.js';
import { ROOT } from './support/run-flags.js';

const TINY = `${ROOT}tooling/reference/data/tiny`;
const folder = newFolder();
const flagsOf = (line: string) => parseFlags(line.split(' ').filter(Boolean), () => {});
const resolve = (line: string, cores = 2) => resolveConfig(flagsOf(line), { cores });

/** A model's directory of nothing but a config, with so many tokens. */
function modelOf(vocab_size: number): string {
  const path = join(folder, `model-${vocab_size}`);
  mkdirSync(path, { recursive: true });
  const shape = { n_positions: 32, n_embd: 16, n_layer: 1, n_head: 2 };
  writeFileSync(join(path, 'config.json'), JSON.stringify({ vocab_size, ...shape }));
  return path;
}

const ROWS = join(folder, 'rows.txt');
writeFileSync(ROWS, 'x'.repeat(10 * 8 + 1));
const ROWS_OF = `--model nano --seq 8 --batch 4 --data ${ROWS}`;
const EMBED = '--task embed --data a.jsonl';
const LORA = { alpha: 32, rank: 16, dropout: 0, targets: 'all-linear', baseType: undefined };

describe('what follows from other flags', () => {
  it.each<[string, Partial<Record<keyof RunConfig, unknown>>, cores?: number]>([
    // Ranks and what they compute on.
    ['--strategy offload', { ranks: 1, threads: 2, device: ['auto'] }],
    ['--strategy ddp', { ranks: 2 }],
    ['--strategy single --ranks 1', { ranks: 1 }],
    ['--ranks 3 --device cpu', { device: ['cpu', 'cpu', 'cpu'] }],
    ['--ranks 3', { threads: 1 }, 5],
    ['--ranks 3', { threads: 2 }, 6],
    ['--ranks 3 --threads 5', { threads: 5 }, 6],
    // The schedule.
    ['--steps 1', { warmup: 1, decaySteps: undefined }],
    ['--steps 14', { warmup: 1 }],
    ['--steps 15', { warmup: 2 }],
    ['--steps 190', { warmup: 19 }],
    ['', { warmup: 20, steps: 480 }],
    ['--steps 10 --warmup 0', { warmup: 0 }],
    ['--schedule constant --warmup 3', { warmup: 3, decaySteps: undefined }],
    ['--schedule wsd', { warmup: 20, decaySteps: 96 }],
    ['--schedule wsd --steps 2', { decaySteps: 1 }],
    ['--schedule wsd --steps 10 --decay-steps 10', { decaySteps: 10 }],
    ['--schedule wsd --steps 10 --decay-steps 0.25', { decaySteps: 3 }],
    ['--schedule wsd --steps 10 --decay-steps 1', { decaySteps: 1 }],
    ['--lr 0.5 --min-lr 0.5', { lr: 0.5, minLr: 0.5 }],
    // The length of a run: ten rows, in batches of four.
    [`${ROWS_OF} --epochs 1`, { steps: 3 }],
    [`${ROWS_OF} --epochs 0.8`, { steps: 2 }],
    [`${ROWS_OF} --epochs 0.01`, { steps: 1 }],
    [`${ROWS_OF} --epochs 2`, { steps: 5, warmup: 1 }],
    // What a model decides.
    [`--model ${modelOf(256)} --seq 32`, { seq: 32, tokenizer: 'byte', lr: 0.004 }],
    [`--model ${modelOf(256)}`, { seq: 32 }],
    [`--model ${modelOf(50_256)}`, { tokenizer: 'byte' }],
    [`--model ${modelOf(50_257)}`, { tokenizer: 'gpt2', lr: 0.004 }],
    ['--model gpt2', { lr: 0.0003, seq: 256 }],
    [`--model ${TINY}`, { lr: 0.004 }],
    [`--model ${TINY} ${EMBED}`, { lr: 0.00005 }],
    [`--model ${TINY} ${EMBED} --lora-rank 2`, { lr: 0.004 }],
    [`--model ${modelOf(256)} ${EMBED}`, { lr: 0.004 }],
    [`${EMBED} --lr 0`, { lr: 0 }],
    // Adapters, which each of their flags asks for.
    ['', { lora: undefined }],
    ['--lora-rank 2', { lora: { ...LORA, rank: 2, alpha: 4 } }],
    ['--lora-alpha 5', { lora: { ...LORA, alpha: 5 } }],
    ['--lora-dropout 0.5', { lora: { ...LORA, dropout: 0.5 } }],
    ['--lora-dropout 0', { lora: LORA }],
    ['--lora-targets a,b', { lora: { ...LORA, targets: ['a', 'b'] } }],
    ['--base-type q8_0', { lora: { ...LORA, baseType: 'q8_0' } }],
    // What is left in the end.
    ['', { final: 'last', keep: 2, evalEvery: 100, evalBatches: 100 }],
    ['--patience 2 --valid a', { final: 'last' }],
    ['--out a --valid a', { final: 'last' }],
    ['--out a --patience 2 --valid a', { final: 'best' }],
    ['--out a --patience 2 --valid-fraction 0.1 --final last', { final: 'last' }],
    ['--out a --valid-fraction 0.1 --final best', { final: 'best' }],
    // Paths, which are those of any folder then.
    [
      '--data a --valid b --out c --trace d --resume e --offload-dir f --cache g',
      {
        ...{ data: absolute('a'), valid: absolute('b'), out: absolute('c'), trace: absolute('d') },
        ...{ resume: absolute('e'), offloadDir: absolute('f'), cache: absolute('g') },
      },
    ],
    ['--out c --resume auto', { resume: 'auto', firstSave: undefined }],
    // Groups of rows and pairs, of which each rank has as many as it can.
    ['--batch 4 --gradient-groups 4', { gradientGroups: 4 }],
    [`--batch 4 --gradient-groups 4 --task classify --data ${ROWS}`, { gradientGroups: 4 }],
    ['--gradient-groups 2 --products wasm', { products: 'wasm' }],
    [`${EMBED} --batch 6 --ranks 3`, { batch: 6 }],
    [`${EMBED} --batch 3 --strategy single`, { batch: 3 }],
    [`${EMBED} --batch 3 --strategy offload`, { batch: 3 }],
    ['--batch 3 --ranks 2', { batch: 3 }],
  ])('%s', async (line, expected, cores) => {
    expect(await resolve(line, cores)).toMatchObject(expected);
  });

  it('a dropout is every one of the model, or those that it has', async () => {
    const { modelConfig: of } = await resolve('--model nano');
    const all = { embd_pdrop: 0.5, attn_pdrop: 0.5, resid_pdrop: 0.5 };
    expect((await resolve('--model nano --dropout 0.5')).modelConfig).toEqual({ ...of, ...all });
    const own = { embd_pdrop: 0, attn_pdrop: 0, resid_pdrop: 0 };
    expect((await resolve('--model nano --dropout 0')).modelConfig).toEqual({ ...of, ...own });
  });
});

describe('flags that can not meet', () => {
  it.each([
    ['--strategy offload --ranks 2', 'offload runs on one rank, got --ranks 2. Use'],
    ['--device cpu,cpu', undefined],
    ['--device cpu,webgpu --ranks 3', 'names 2 devices for 3 ranks. Name one, or one a rank.'],
    ['--lr 0.1 --min-lr 0.2', '--min-lr 0.2 is above --lr 0.1. Give a lower one'],
    ['--schedule wsd --steps 9 --decay-steps 10', '--decay-steps 10 is more than all 9 steps.'],
    ['--steps 3 --epochs 1', '--steps 3 and --epochs 1 both say how long the run is.'],
    ['--valid a --valid-fraction 0.1', '--valid a and --valid-fraction 0.1 both say what to'],
    ['--out a --final best', '--final best, but there is nothing to evaluate on.'],
    [
      '--model nano --init-from a --resume b',
      '--init-from a and --resume b both say what the run begins',
    ],
    [
      '--model nano --init-from a --adapter b',
      '--init-from a and --adapter b both say what the run begins',
    ],
    ['--model nano --init-from nowhere --out c --resume auto', '--init-from: expected a save'],
    ['--resume auto', '--resume auto looks for saves under --out, which is not given.'],
    [
      '--transport mpi --out a --save-every 5 --max-restarts 1',
      '--max-restarts: what started the ranks ends them all with the first that dies',
    ],
    ['--transport ws --out a --save-every 5 --max-restarts 1', undefined],
    ['--batch 3 --gradient-groups 4', '4 of --batch 3 rows: each has one at least. Give at most 3'],
    ['--gradient-groups 2 --grad-accum 2', '2 and --grad-accum 2 both cut a step.'],
    ['--gradient-groups 2 --grad-accum 1', undefined],
    ['--gradient-groups 2 --products native', '2 is for one sum on any machine, and --products'],
    ['--gradient-groups 2 --strategy offload', 'is for --strategy single, fsdp or ddp, got off'],
    [`--gradient-groups 2 ${EMBED}`, '2 and --task embed: the texts of a group would be compar'],
    [`${EMBED} --grad-accum 2`, '--grad-accum 2: the texts of a micro-step would be compared'],
    [`--task rerank --data a.jsonl --grad-accum 2`, undefined],
    [`${EMBED} --batch 3`, '--batch 3 pairs on 2 ranks: each takes as many as the others.'],
    ['--task classify', '--task classify learns from examples, and --data is not given.'],
    ['--adapter a --lora-rank 2', '--adapter: a says what its adapters are, got --lora-rank too'],
    ['--adapter a --lora-alpha 2', '--adapter: a says what its adapters are, got --lora-alpha'],
    ['--adapter a --lora-targets q', '--adapter: a says what its adapters are, got --lora-targ'],
    [
      `--model ${modelOf(256)} --seq 33`,
      "--seq 33 is beyond the model's 32 positions. Use --seq 32",
    ],
    [`--init-from ${TINY} --lora-rank 2`, 'holds a whole model, and adapters are trained beside'],
    [`--init-from ${TINY} --model nano`, TINY],
    ['--model x.mjs', '--model x.mjs: there is no file'],
  ])('%s', async (line, message) => {
    const found = await resolve(line).catch((error: unknown) => error);
    if (message === undefined) {
      expect(found).not.toBeInstanceOf(Error);
    } else {
      expect(found).toBeInstanceOf(UsageError);
      expect((found as Error).message).toContain(message);
    }
  });
});

describe('flags without an effect', () => {
  /** As many as there are, and one more. */
  it.each([
    ['--batch 5 --grad-accum 3', '--batch 5 --grad-accum 4'],
    ['--batch 8 --ranks 4 --gradient-groups 4', '--batch 8 --ranks 5 --gradient-groups 4'],
    ['--strategy offload --model nano --slices 4', '--strategy offload --model nano --slices 5'],
    [
      '--strategy offload --batch 5 --grad-accum 2 --micro-batches 3',
      '--strategy offload --batch 5 --grad-accum 2 --micro-batches 4',
    ],
    ['--steps 3 --warmup 3', '--steps 3 --warmup 4'],
    ['--grad-accum 2 --no-sync', '--grad-accum 1 --no-sync'],
    ['--precision fp16 --fp32-reduce', '--precision fp32 --fp32-reduce'],
    ['--strategy ddp --precision bf16 --fp32-reduce', '--strategy ddp --fp32-reduce'],
    ['--device cpu,webgpu --products wasm', '--device webgpu:1 --products wasm'],
  ])('none of %s, one of %s', async (some, none) => {
    const told = async (line: string) => idleFlags(flagsOf(line), await resolve(line)).length;
    expect([await told(some), await told(none)]).toEqual([0, 1]);
  });

  it("is none of those of a module's own rows, which nobody typed", async () => {
    const flags = flagsOf('--valid a --eval-every 5');
    const run = await resolveConfig(flags);
    expect(idleFlags({ ...flags, valid: undefined }, run)).toEqual([]);
    expect(isRefused('evalEvery', {})).toBe(true);
    expect(isRefused('evalEvery', { validFraction: 0 })).toBe(false);
  });

  it.each([
    ['negatives', { task: 'rerank' }, false],
    ['negatives', { task: 'classify' }, true],
    ['minLr', { schedule: 'wsd' }, false],
    ['decaySteps', { schedule: 'wsd' }, false],
    ['classWeights', { task: 'rerank' }, true],
    ['trainOnPrompt', { data: 'a.txt' }, true],
    ['trainOnPrompt', { data: 'a.csv' }, false],
    ['trainOnPrompt', { data: 'a.csv', task: 'embed' }, true],
    ['offloadDir', { strategy: 'offload' }, false],
    ['offloadDir', { strategy: 'single' }, true],
    ['keep', { out: 'a', saveEvery: { steps: 1 } }, false],
  ] as const)('%s with %j', (name, given, refused) => {
    expect(isRefused(name, given)).toBe(refused);
  });

  it('a task of a preset is warned of where its weights are new', async () => {
    const flags = flagsOf('--task embed --data a.jsonl');
    const run = await resolveConfig(flags);
    const told = (more: Partial<RunConfig>) => runWarnings(flags, { ...run, ...more }).length;
    expect(told({})).toBe(1);
    expect(told({ firstSave: 'a' })).toBe(0);
    expect(told({ resume: 'a' })).toBe(0);
    expect(told({ model: { kind: 'directory', path: TINY, hasWeights: true } })).toBe(0);
    expect(told({ task: 'lm' })).toBe(0);
  });
});

describe('the config file that a run leaves', () => {
  const CPU = { device: 'cpu', numericClass: 'wasm/1' } as const;
  const WEBGPU = { device: 'webgpu', numericClass: 'webgpu/1' } as const;
  const left = async (line: string, ready: readonly object[] = [CPU, CPU]) =>
    parseYaml(resolvedConfig(await resolve(line), ready as never)) as Record<string, unknown>;

  it.each<[string, Record<string, unknown>, (readonly object[])?]>([
    ['', { device: 'cpu', seq: 64, lr: 0.004, products: 'wasm', reshard: true }],
    ['--device auto,webgpu:1', { device: ['cpu', 'webgpu:1'] }, [CPU, WEBGPU]],
    ['--device webgpu:1', { device: 'webgpu:1', products: 'auto' }, [WEBGPU, WEBGPU]],
    ['', { device: ['webgpu', 'cpu'] }, [WEBGPU, CPU]],
    ['--products native', { products: 'native' }],
    ['--out a --save-every 5 --time-limit 2h', { 'save-every': 5, 'time-limit': '7200s' }],
    ['--out a --save-every 1.5m', { 'save-every': '1.5m', out: absolute('a') }],
    ['--lora-rank 3', { 'lora-rank': 3, 'lora-alpha': 6, 'lora-targets': 'all-linear' }],
    ['--strategy offload --slices 2', { slices: 2, 'micro-batches': 1 }],
    ['--valid a --patience 3', { patience: 3, 'eval-every': 100, valid: absolute('a') }],
    ['--schedule wsd', { 'decay-steps': 96, warmup: 20, steps: 480 }],
  ])('%s', async (line, expected, ready) => {
    expect(await left(line, ready)).toMatchObject(expected);
  });

  it('leaves to a directory of adapters what it tells', async () => {
    const run = await resolve('--lora-rank 3 --lora-dropout 0.5');
    const adapted = { ...run, lora: { ...run.lora!, directory: '/adapters' } };
    const kept = parseYaml(resolvedConfig(adapted, [CPU, CPU] as never)) as object;
    expect(kept).toMatchObject({ adapter: '/adapters', 'lora-dropout': 0.5 });
    expect(Object.keys(kept).filter((key) => key.startsWith('lora-'))).toEqual(['lora-dropout']);
  });

  it.each([
    ['--quiet --check --dashboard --trace a', ['quiet', 'check', 'dashboard', 'trace']],
    ['', ['resume', 'fresh', 'slices', 'eval-every', 'keep', 'final', 'decay-steps', 'epochs']],
    ['--schedule constant', ['min-lr', 'decay-steps']],
    ['--out a --resume b', ['resume']],
    ['--offload-dir a --fresh', ['fresh', 'cpu-offload']],
    [EMBED, ['sample-every', 'class-weights', 'train-on-prompt']],
  ])('%s leaves out %j', async (line, names) => {
    const keys = Object.keys(await left(line));
    expect(names.filter((name) => keys.includes(name))).toEqual([]);
  });
});

describe('the values of a flag', () => {
  const { checkValue } = kinds;
  const all: Readonly<Record<string, unknown>> = { ...kinds };
  it.each<[keyof typeof kinds, typed: unknown, value: unknown]>([
    ['probability', '0', 0],
    ['probability', '1', undefined],
    ['part', '0', undefined],
    ['part', '.5', 0.5],
    ['part', '1', undefined],
    ['share', '0', undefined],
    ['share', '1', 1],
    ['share', '1.01', undefined],
    ['shareOrNone', '0', 0],
    ['shareOrNone', '1.', 1],
    ['shareOrNone', '1.01', undefined],
    ['nonNegative', '0', 0],
    ['nonNegative', '-1e-9', undefined],
    ['positive', '0', undefined],
    ['positive', '+1e-9', 1e-9],
    ['countOrPart', '1', 1],
    ['countOrPart', '1.5', undefined],
    ['countOrPart', '0', undefined],
    ['countOrPart', '0.5', 0.5],
    ['threads', '64', 64],
    ['threads', '0', undefined],
    ['ranks', '65536', 65_536],
    ['ranks', '65537', undefined],
    ['bytes', '1.5 kb', 1500],
    ['bytes', '1KiB', 1024],
    ['bytes', '2gb', 2e9],
    ['bytes', '1TiB', 2 ** 40],
    ['bytes', '0.5b', undefined],
    ['bytes', '1.9b', 1],
    ['bytes', '0', undefined],
    ['bytes', '1', 1],
    ['bitRate', '1gbit', 1e9],
    ['bitRate', '2.5Mbit/s', 2.5e6],
    ['bitRate', '3 kbps', undefined],
    ['bitRate', '3 kbitps', 3000],
    ['bitRate', '0gbit', undefined],
    ['bitRate', '0', undefined],
    ['duration', '90s', 90],
    ['duration', '1.5m', 90],
    ['duration', '2h', 7200],
    ['duration', '0.0h', undefined],
    ['duration', '5', undefined],
    ['saveEvery', '100', { steps: 100 }],
    ['saveEvery', '0', undefined],
    ['saveEvery', '0.5m', { minutes: 0.5 }],
    ['saveEvery', '5s', undefined],
    ['stepRange', '3', { first: 3, last: 3 }],
    ['stepRange', '3..3', { first: 3, last: 3 }],
    ['stepRange', '3..12', { first: 3, last: 12 }],
    ['stepRange', '3..2', undefined],
    ['stepRange', '0..2', undefined],
    ['counts', ' 8, 4', [8, 4]],
    ['counts', '8,', undefined],
    ['counts', '8,0', undefined],
    ['targets', 'all-linear', 'all-linear'],
    ['targets', 'a, b ', ['a', 'b']],
    ['targets', 'a,', undefined],
    ['devices', 'cpu', ['cpu']],
    ['devices', 'cpu,webgpu:x', ['cpu', 'webgpu:x']],
    ['devices', 'cpu,', undefined],
    ['device', 'webgpu:', undefined],
    ['port', '65535', 65_535],
    ['port', '65536', undefined],
    ['port', '0', 0],
    ['port', true, true],
    ['fileOrNone', true, true],
    ['fileOrNone', '', undefined],
    ['data', 'a,b', 'a,b'],
    ['data', ['a', 'b'], 'a,b'],
    ['data', [], undefined],
    ['text', '', ''],
    ['filledText', '', undefined],
    ['paths', [], undefined],
  ])('%s of %j', (name, typed, value) => {
    const kind = all[name] as kinds.FlagKind<unknown>;
    const checked = checkValue(kind, kind.read(typed), `"${typed}"`);
    expect(checked).toMatchObject(
      value === undefined ? { problem: expect.stringMatching(/^expected .*, got/) } : { value },
    );
  });

  it('values of a few are taken in any case, once each, and others are told what was meant', () => {
    const one = kinds.oneOf(['fp32', 'q4_K_M', 'webgpu']);
    expect(['FP32', 'q4_k_m', 'Q4_K_M', 'x'].map(one.read)).toEqual([
      ...['fp32', 'q4_K_M', 'q4_K_M', 'x'],
    ]);
    expect(
      ['Float32', '32_True', '--cuda', 'Q4', 'weebgpu', 'zzzzzz'].map((x) => one.meant!(x)),
    ).toEqual([...['fp32', 'fp32', 'webgpu', 'q4_K_M', 'webgpu', undefined]]);
    const some = kinds.someOf(['f32', 'q8_0']);
    expect(checkValue(some, some.read('q8_0,f32,q8_0'), '')).toMatchObject({
      value: ['q8_0', 'f32'],
    });
    expect(checkValue(some, some.read(''), '')).toHaveProperty('problem', expect.any(String));
    expect(['q8,float', 'q8,zzzzzz'].map((x) => some.meant!(x))).toEqual(['q8_0,f32', undefined]);
    const { threads, whole } = kinds;
    expect(checkValue(whole(2), 1, '1').problem).toBe(
      'expected a whole number of at least 2, got 1.',
    );
    expect(checkValue(whole(2), 2 ** 53, 'that').problem).toBe(
      'expected a whole number of at least 2, at most 9007199254740991, got that.',
    );
    expect(checkValue(threads, 2 ** 53, 'that').problem).toBe(
      'expected a whole number from 1 to 64, got that.',
    );
  });
});
