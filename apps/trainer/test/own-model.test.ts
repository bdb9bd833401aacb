// Modules that people write, trained by --model FILE.mjs: the two of examples/, and small ones of
// which each is wrong in one way.

import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type Module, readSafetensors } from '@shardweave/nn';
import { Device, type Tensor } from '@shardweave/tensor-core';

import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { resolveConfig } from '../src/config/resolve-config.js';
import { resolvedConfig } from '../src/config/resolved-config.js';
import { textHash } from '../src/own-model/module-text.js';
import { openOwnModel } from '../src/own-model/open-own-model.js';
import { DeviceHost } from '../src/rank/device-host.js';
import { parseFlags } from './support/parse-flags.js';
import { runCli } from './support/run-cli.js';
import { ROOT } from './support/run-flags.js';
import { lossesOf, runLine, told } from './support/tiny-run.js';

const MOONS = `${ROOT}examples/two-moons.mjs`;
const STATES = `${ROOT}examples/state-space.mjs`;
const CPU = '--device cpu --threads 1 --products wasm --warmup 0 --schedule constant --batch 6';
const LINES = {
  'two-moons.mjs': `--model ${MOONS} ${CPU} --eval-batches 4`,
  'state-space.mjs': `--model ${STATES} ${CPU} --seq 16 --data ${ROOT}tooling/reference/data/tiny/text.txt`,
};
const isLong = process.env.SHARDWEAVE_LONG === '1';
/** In the short run the two modules share them. */
const WAYS = [
  ['--strategy ddp --ranks 2', 3e-6],
  ['--strategy offload --slices 2', 3e-6],
  ['--strategy fsdp --ranks 3 --grad-accum 2 --checkpoint-activations', 3e-6],
  ['--strategy ddp --ranks 4 --grad-accum 2', 3e-6],
  ['--strategy fsdp --ranks 2 --precision bf16', 2e-3],
  ['--strategy single --precision fp16', 2e-4],
] as const;
const root = newFolder();

describe.each(Object.entries(LINES))('%s', (name, line) => {
  const wanted = runLine(`${line} --strategy single --steps 3`).then(lossesOf);

  it.each(isLong ? WAYS : WAYS.filter((_, i) => i % 2 === Object.keys(LINES).indexOf(name)))(
    'has the losses of a single rank by %s',
    async (way, tolerance) => {
      const losses = lossesOf(await runLine(`${line} ${way} --steps 3`));
      for (const [i, loss] of (await wanted).entries()) {
        expect(Math.abs(losses[i]! / loss - 1), `step ${i + 1}`).toBeLessThan(tolerance);
      }
      expect((await wanted)[2]).not.toBe((await wanted)[0]);
    },
  );

  it('is one run in groups of rows, on any number of ranks', async () => {
    const grouped = (way: string) =>
      runLine(`${line} --gradient-groups 4 --steps 2 --strategy ${way}`).then(told);
    expect(await grouped('fsdp --ranks 3')).toEqual(await grouped('single'));
  });

  it('goes on from a save on other ranks, and leaves weights by its own names', async () => {
    const out = join(root, name);
    const whole = await runLine(`${line} --strategy fsdp --ranks 3 --steps 3`);
    await runLine(`${line} --strategy ddp --ranks 2 --steps 2 --out ${out} --save-every 2`);
    const again = await runLine(
      `${line} --strategy fsdp --ranks 3 --steps 3 --out ${out} --save-every 2 --resume auto`,
    );
    expect(again.resumed?.notes.filter((note) => note.includes('text'))).toEqual([]);
    expect(again.steps[0]!.loss / whole.steps[2]!.loss).toBeCloseTo(1, 5);
    const left = readSafetensors(readFileSync(join(out, 'model/model.safetensors')));
    const { module } = await opened(line);
    expect([...left.tensors].map(([key, { shape }]) => [key, [...shape]])).toEqual(
      module.namedParameters().map(([key, { shape }]) => [key, [...shape]]),
    );
    const path = line.split(' ')[1]!;
    expect(JSON.parse(readFileSync(join(out, 'model/config.json'), 'utf8'))).toMatchObject({
      ...{ model_type: 'module', module: name, sha256: textHash(path) },
    });
    const resolved = await resolveConfig(parseFlags(line.split(' '), () => {}));
    expect(resolvedConfig(resolved, [])).toContain(textHash(path));
    const converted = await runCli(['convert', '--from', out, '--out', `${out}-again`]);
    expect(converted.err).toBe('');
    const bytes = readFileSync(join(`${out}-again`, 'model.safetensors'));
    expect(bytes.equals(readFileSync(join(out, 'model/model.safetensors')))).toBe(true);
  });
});

/** Opens the model of a command line on a device of this process. */
async function opened(line: string): Promise<{ readonly module: Module; readonly device: Device }> {
  const config = await resolveConfig(parseFlags(line.split(' '), () => {}));
  const backend = await new DeviceHost().open('cpu', { threads: 1 });
  const device = new Device(backend, { seed: config.seed });
  const { module } = (await openOwnModel(device, config))!;
  return { module, device };
}

it('the recurrence of state-space.mjs is h[t] = a h[t-1] + x[t]', async () => {
  const { module, device } = await opened(LINES['state-space.mjs']);
  const recurrence = new Map(module.namedModules()).get('1.recurrence')! as Module<
    [Tensor],
    Tensor
  >;
  const { rate } = recurrence as unknown as { readonly rate: Tensor };
  const [rows, seq, width] = [2, 16, 64];
  const x = Float32Array.from({ length: rows * seq * width }, (_, i) => Math.sin(i));
  const found = await device.scope(async () => {
    const { materialize } = await import('@shardweave/nn/flat');
    await materialize(module);
    return (await recurrence.call(device.tensor(x, [rows, seq, width]))).toArray();
  });
  const rates = await rate.toArray();
  const states = new Float64Array(rows * width);
  for (let t = 0; t < seq; t++) {
    for (const [i, before] of states.entries()) {
      const [row, channel] = [Math.floor(i / width), i % width];
      const at = (row * seq + t) * width + channel;
      states[i] = Math.exp(-Math.exp(Number(rates[channel]))) * before + x[at]!;
      expect(Math.abs(Number(found[at]) - states[i]!)).toBeLessThan(2e-5);
    }
  }
  module.dispose();
});

/** Writes a module of one linear layer, with other members than its own in place of them. */
function file(name: string, members = '', before = ''): string {
  const path = join(root, `${name}.mjs`);
  const text = `${before}
export function create({ device, init, nn, tensor }) {
  const module = new nn.Linear(device, { inFeatures: 2, outFeatures: 1, init });
  const call = (module, rows) => module.call(device.full([rows.length, 2], 1));
  const loss = async (module, rows) => tensor.sum(await call(module, rows));
  const rows = { count: 8, batch: (rows) => rows };
  return { module, loss, rows, ${members} };
}`;
  writeFileSync(path, text);
  return path;
}

const line = (path: string, more = '--steps 1') =>
  `--model ${path} ${CPU} --strategy single ${more}`;

describe('a file that is wrong in one way', () => {
  it.each([
    ['no export', 'export const x = 1;', /x\.mjs: expected a file that exports create, got x\./],
    ['no object', 'export const create = () => 5;', /create: expected an object .*, got 5\./],
    [
      'no module',
      file('a', 'module: {}'),
      /expected module to be a Module of .*nn, got a plain object\./,
    ],
    [
      'another copy',
      file('b', "module: { [Symbol.for('@shardweave/nn/Module')]: true }"),
      /another copy of @shardweave\/nn than the trainer's: .* create's argument\./,
    ],
    ['no loss', file('c', 'loss: 3'), /expected loss to be a function .*, got 3\./],
    ['no rows', file('d', 'rows: { count: 0, batch: () => 1 }'), /rows\.count: .*, got 0\./],
    ['no batch', file('e', 'rows: { count: 2 }'), /rows: expected \{ count, batch \}/],
    [
      'valid alone',
      file('f', 'validRows: rows, rows: undefined'),
      /expected rows beside validRows/,
    ],
    ['a number', file('g', 'loss: () => 1'), /loss: expected .* a tensor of one float, got 1\./],
    ['a matrix', file('h', 'loss: call'), /loss: expected .*, got f32 \[6, 1\]\. End it with sum/],
    ['no graph', file('i', 'loss: () => device.zeros([1])'), /got one without a graph\. Call the/],
    [
      'NaN',
      file('j', 'loss: async (...args) => tensor.mul(await loss(...args), device.full([1], NaN))'),
      /j\.mjs: the sum of its losses is not a number at step 1/,
    ],
    ['targets', file('k', 'rows: { ...rows, targets: () => -1 }'), /targets\(\d\): .*, got -1\./],
    [
      'a throw',
      file('l', "loss: () => { throw new TypeError('bad') }"),
      /loss failed\. TypeError: bad\n +at loss .*l\.mjs:\d+:\d+/,
    ],
    [
      'create',
      file('m', '', 'oh();'),
      /its import failed\. ReferenceError: oh is not defined\n +at .*m\.mjs:1/,
    ],
  ])('%s is told in a sentence', async (name, given, message) => {
    let path = given;
    if (!given.startsWith('/')) {
      path = join(root, `${name.replace(' ', '-')}-x.mjs`);
      writeFileSync(path, given);
    }
    const { code, err } = await runCli(['train', ...line(path, '--steps 1').split(' ')]);
    expect(err).toMatch(message);
    expect(err).toContain(`--model ${path}: `);
    expect(code).toBe(name === 'NaN' ? 1 : 2);
  });
});

it.each([
  ['--task embed --data x.jsonl', /^--task is for our own models/],
  ['--lora-rank 2', /^--lora-rank is for our own models/],
  ['--dropout 0.1', /^--dropout is for our own models/],
  ['--tokenizer model', /^--tokenizer model: a module has none/],
  [`--data ${MOONS}`, /^--data: the module of .* has rows of its own/],
  ['--strategy offload', /^--strategy offload: expected the module of .* to be a Sequential/],
])('%s is refused beside a module', async (flags, message) => {
  await expect(runLine(`${line(file('linear'))} ${flags}`)).rejects.toThrow(message);
});

it('a shape that does not fit below a wrapper is told with the line of the file', async () => {
  const member =
    'module: new nn.Sequential(device, [new nn.Sequential(device, [new nn.Linear(device, { inFeatures: 3, outFeatures: 1, init })])])';
  const run = `--model ${file('shapes', member)} ${CPU} --strategy fsdp --ranks 2 --steps 1`;
  const { err } = await runCli(['train', ...run.split(' ')]);
  expect(err).toMatch(/ShapeError: .*\n +at (call|loss) .*shapes\.mjs:\d+:\d+/);
  expect(err).not.toMatch(/\n +at .*packages/);
});

it.each([
  ['mean', ['rows', 'tokens'], true],
  ['sum', ['rows', 'tokens'], false],
])('a loss that is a %s over %j is told: %s', async (how, kinds, isTold) => {
  for (const kind of kinds) {
    const loss = `loss: async (module, batch) => tensor.${how}(tensor.square(await call(module, batch.tokens ? { length: batch.tokens.shape[0] } : batch)))`;
    const path = file(`${how}-${kind}`, kind === 'rows' ? loss : `${loss}, rows: undefined`);
    const data = kind === 'rows' ? '' : `--seq 4 --data ${MOONS}`;
    const run = `--model ${path} ${CPU} ${data} --strategy fsdp --ranks 2 --steps 1`;
    const { warnings } = await runLine(run.replace(/ +/g, ' '));
    const told = warnings.filter((text) => text.includes('its loss looks like a mean'));
    expect(told, kind).toHaveLength(Number(isTold));
  }
});

it('a module that is not there is told by its path', async () => {
  const { code, err } = await runCli(['train', '--model', './nope.mjs']);
  expect([code, err]).toEqual([2, expect.stringMatching(/there is no file .*\/nope\.mjs\./)]);
});

it('the module of docs/how-to/train-your-own-model.md trains as it stands', async () => {
  const page = readFileSync(`${ROOT}docs/how-to/train-your-own-model.md`, 'utf8');
  const path = join(root, 'mine.mjs');
  writeFileSync(path, /```js\n(.*?)```/s.exec(page)![1]!);
  const { steps } = await runLine(`--model ${path} ${CPU} --batch 64 --ranks 2 --steps 20`);
  expect(steps[19]!.loss).toBeLessThan(steps[0]!.loss / 1.5);
});

it('each row counts as many targets as it says, at any number of ranks', async () => {
  const path = file('counted', 'rows: { count: 7, batch: (rows) => rows, targets: (row) => row }');
  const wanted = await runLine(line(path, '--steps 7'));
  expect(wanted.steps.reduce((sum, { targets }) => sum + targets, 0)).toBe(
    6 * (1 + 2 + 3 + 4 + 5 + 6),
  );
  const { steps } = await runLine(line(path, '--steps 7 --strategy ddp --ranks 3 --grad-accum 2'));
  expect(steps.map(({ targets }) => targets)).toEqual(wanted.steps.map(({ targets }) => targets));
  expect(steps[6]!.loss / wanted.steps[6]!.loss).toBeCloseTo(1, 5);
});

describe('a run that goes on', () => {
  it('is told of a text that has changed, and of what that imports', async () => {
    const path = file('changed', '', "import './beside.mjs';");
    writeFileSync(join(root, 'beside.mjs'), '// one');
    const run = line(path, `--out ${join(root, 'changed')} --save-every 1`);
    await runLine(`${run} --steps 1`);
    writeFileSync(join(root, 'beside.mjs'), '// two');
    const { resumed } = await runLine(`${run} --steps 2 --resume auto`);
    expect(resumed?.notes[0]).toMatch(
      /^The text of --model .*changed\.mjs is not that of the save/,
    );
  });

  it('is refused with parameters of other names', async () => {
    const run = `--out ${join(root, 'renamed')} --save-every 1`;
    await runLine(line(file('renamed'), `${run} --steps 1`));
    const other = file('renamed', 'module: new nn.Sequential(device, [module])');
    await expect(runLine(line(other, `${run} --steps 2 --resume auto`))).rejects.toThrow(
      /^--resume: .*step-000001 can't be used\. .*0\.weight.* Give the model that was saved\.$/,
    );
  });
});

it('what a module leaves is refused by commands for our own models', async () => {
  const out = join(root, 'left');
  await runLine(line(file('left'), `--steps 1 --out ${out}`));
  const sentence = /holds the weights of a module that was trained by --model left\.mjs/;
  for (const command of [
    `generate --model ${out} --prompt x`,
    `gguf --model ${out} --out ${out}.gguf`,
    `onnx --model ${out} --out ${out}-onnx`,
    `eval --model ${out} --data ${STATES}`,
    `embed --model ${out} --data ${STATES} --out ${out}.npy`,
    `train --model ${out}`,
  ]) {
    expect((await runCli(command.split(' '))).err, command).toMatch(sentence);
  }
});
