// bisect finds where two runs part, and what differed there: five planted differences.

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, expect, it, vi } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { runCli } from './support/run-cli.js';
import { tinyFlags } from './support/tiny-run.js';

const root = newFolder();
const cli = (line: string) => runCli(line.split(' '));
const data = join(root, 'rows.jsonl');
const rows = Array.from({ length: 60 }, (_, i) => JSON.stringify({ text: `row ${i % 7} ok` }));
const writeRows = (path: string, texts: readonly string[]) =>
  writeFileSync(path, `${texts.join('\n')}\n`);
const tiny = `train ${tinyFlags(root).replace(/--data \S+/, '')} --cache ${join(root, 'cache')} --quiet`;
const train = (out: string, more = '', from = data) =>
  cli(
    `${tiny.replace(/ +/g, ' ')} --strategy single --order sequential --steps 5 --data ${from} --out ${out} ${more}`.trim(),
  );

/** A run of 5 steps of 12 rows each. */
const one = join(root, 'one');
beforeAll(async () => {
  writeRows(data, rows);
  expect(await train(one, '--save-every 3 --keep 9')).toMatchObject({ code: 0 });
});

async function bisected(other: string): Promise<string> {
  const { code, out, err } = await cli(`bisect ${one} ${other}`);
  expect([code, err]).toEqual([1, '']);
  return out;
}

it('finds nothing between two runs of one command', async () => {
  const other = join(root, 'again');
  await train(other);
  expect(await cli(`bisect ${one} ${other}`)).toMatchObject({
    code: 0,
    out: `${one} and ${other} are equal in all 5 steps that both have, 1 to 5.\n`,
  });
});

it('finds a flag that is another one from the start', async () => {
  const other = join(root, 'seed');
  await train(other, '--seed 2');
  const out = await bisected(other);
  expect(out).toContain('differ from the first step on, and part at step 1');
  expect(out).toContain('config: --seed is 1 in the first, and 2 in the second.');
  expect(out.split('\n')).toHaveLength(3);
});

it('finds a flag that was changed where a run went on', async () => {
  const other = join(root, 'lr');
  await train(other, `--lr 0.02 --resume ${one}/saves/step-000003`);
  const out = await bisected(other);
  expect(out).toContain('and part at step 4: its learning rate is');
  expect(out).toContain(`start: the second went on from ${one}/saves/step-000003 before step 4.`);
  expect(out).toContain('config: --lr is 0.004 in the first, and 0.02 in the second.');
});

it('finds devices that round otherwise', async () => {
  const other = join(root, 'class');
  const validate = vi.spyOn(WebAssembly, 'validate').mockReturnValue(false);
  try {
    expect(await train(other)).toMatchObject({ code: 0 }); // as where there is no relaxed SIMD
  } finally {
    validate.mockRestore();
  }
  const out = await bisected(other);
  expect(out).toMatch(/ and part at step \d: its (loss|gradient norm) is/);
  expect(out).toMatch(
    /class: the first was computed by cpu .* for fused products.*, and the second by cpu .* for plain products/,
  );
  expect(out.trimEnd().split('\n')).toHaveLength(2);
});

it('finds other data', async () => {
  const [other, path] = [join(root, 'data'), join(root, 'other.jsonl')];
  writeRows(
    path,
    rows.map((row) => row.replace('ok', 'no')),
  );
  await train(other, '', path);
  const out = await bisected(other);
  expect(out).toContain(`data: ${data} and ${path} are not the same`);
  expect(out).toContain('row: row 0 of step 1 is "row 0 ok" in the first, and "row 0 no" in the');
});

it('finds one row that has changed', async () => {
  const [other, path] = [join(root, 'row'), join(root, 'changed.jsonl')];
  writeRows(path, rows.with(29, JSON.stringify({ text: 'QZ#x' }))); // and padding behind it
  await train(other, '', path);
  const out = await bisected(other);
  expect(out).toContain('up to step 2, and part at step 3: its number of targets is 96');
  expect(out).toContain(
    'row: row 5 of step 3 is "row 1 ok" in the first, and "QZ#x" in the second.',
  );
  expect(out.match(/^row:/gm)).toHaveLength(1);
});
