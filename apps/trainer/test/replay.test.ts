// replay computes a step again, row by row, and tells which row made what the step came to.

import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { runCli } from './support/run-cli.js';
import { tinyFlags } from './support/tiny-run.js';

const root = newFolder();
const tiny = `train ${tinyFlags(root)} --cache ${join(root, 'cache')} --quiet`;
const cli = (line: string) => runCli(line.split(' '));

interface Found {
  readonly metrics: { readonly loss: number; readonly gradNorm: number };
  readonly difference?: string;
  readonly rows: readonly {
    readonly row: number;
    readonly loss: number;
    readonly targets: number;
    readonly gradNorm: number;
    readonly layers: Readonly<Record<string, number>>;
    readonly activations: Readonly<Record<string, number>>;
    readonly texts: readonly string[];
  }[];
}

async function replayed(run: string, step: number): Promise<Found> {
  const { out, err } = await cli(`replay ${run} --step ${step} --rows --json`);
  expect(err).toBe('');
  return JSON.parse(out) as Found;
}

describe('replay', () => {
  it.each(['--strategy single', '--ranks 3 --grad-accum 2'])(
    '%s: the step has its bits, and its rows add up to it',
    async (way) => {
      const run = join(newFolder(), 'run');
      await cli(`${tiny} ${way} --batch 6 --steps 5 --save-every 3 --dropout 0 --out ${run}`);
      const lines = readFileSync(join(run, 'metrics.jsonl'), 'utf8').trim().split('\n');
      const step = 5;
      const { metrics, difference, rows } = await replayed(run, step);
      const line = JSON.parse(lines[step - 1]!) as Found['metrics'];
      expect([metrics.loss, metrics.gradNorm]).toEqual([line.loss, line.gradNorm]);
      expect(difference).toBeUndefined();
      expect(rows.map(({ row }) => row).sort((a, b) => a - b)).toEqual([...Array(6).keys()]);
      const mean = rows.reduce((sum, { loss }) => sum + loss / 6, 0);
      expect(mean).toBeCloseTo(line.loss, 5);
      const norms = rows.map(({ gradNorm }) => gradNorm);
      expect(norms).toEqual(norms.toSorted((a, b) => b - a));
      expect(norms.reduce((sum, norm) => sum + norm)).toBeGreaterThanOrEqual(line.gradNorm);
      const { layers, activations, texts, gradNorm } = rows[0]!;
      expect(Object.keys(layers)).toEqual(['wte', 'wpe', 'h.0', 'h.1', 'ln_f']);
      expect(Math.hypot(...Object.values(layers)) / gradNorm).toBeCloseTo(1, 5);
      expect(Object.keys(activations)).toEqual(expect.arrayContaining(['h.0', 'h.1', 'ln_f']));
      expect(Buffer.byteLength(texts[0]!)).toBeGreaterThanOrEqual(8);
    },
  );

  it('has a poisoned row among many first in its step', async () => {
    const folder = newFolder();
    const [data, run] = [join(folder, 'rows.jsonl'), join(folder, 'run')];
    // Each has 8 tokens and an end, which is a row.
    const rows = Array.from({ length: 240 }, (_, i) => ({ text: `row ${i % 2} ok` }));
    rows[125] = { text: 'QZ#x<b>@' };
    writeFileSync(data, rows.map((row) => `${JSON.stringify(row)}\n`).join(''));
    const flags = tiny.replace(/--data \S+/, `--data ${data}`);
    const way = '--strategy single --order sequential --steps 12 --save-every 8';
    expect(await cli(`${flags} ${way} --out ${run}`)).toMatchObject({ code: 0 });
    const step = Math.floor(125 / 12) + 1;
    const { rows: found } = await replayed(run, step);
    expect(found[0]!.texts[0]).toContain('QZ#x<b>@');
    expect(found[0]!.gradNorm).toBeGreaterThan(found[1]!.gradNorm);
    const page = join(folder, 'page.html');
    const { code, out } = await cli(`replay ${run} --step ${step} --page ${page}`);
    expect(code).toBe(0);
    const html = readFileSync(page, 'utf8');
    expect(html.match(/<th scope="row">\d+<\/th>/g)).toHaveLength(12);
    expect(html.indexOf('QZ#x&lt;b>@')).toBeLessThan(html.indexOf('row 1 ok'));
    expect(html).not.toContain('<b>');
    expect(out.split('\n')[4]).toMatch(/^ +5 .*QZ#x<b>@/);
  });
});
