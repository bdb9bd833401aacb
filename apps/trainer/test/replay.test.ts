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
    readonly places: readonly string[];
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
      // They are a row's own: the largest of all rows before it would never fall.
      const largest = rows.toSorted((a, b) => a.row - b.row).map((row) => row.activations['h.0']!);
      expect(largest).not.toEqual(largest.toSorted((a, b) => a - b));
      expect(Buffer.byteLength(texts[0]!)).toBeGreaterThanOrEqual(8);
      const [, data] = /--data (\S+)/.exec(tiny)!;
      const text = readFileSync(data!, 'latin1'); // whose tokens are its bytes
      for (const { places, texts } of rows) {
        const [, name, token, all] = /^(.+), token (\d+) of (\d+)$/.exec(places.join())!;
        expect([name, Number(all)]).toEqual([data, text.length]);
        expect(text.slice(Number(token), Number(token) + 8)).toBe(texts.join());
      }
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
    expect(found[0]!.texts).toEqual(['QZ#x<b>@']);
    expect(found[0]!.places).toEqual([`${data}, line 126`]);
    expect(found[0]!.gradNorm).toBeGreaterThan(found[1]!.gradNorm);
    const page = join(folder, 'page.html');
    const { code, out } = await cli(`replay ${run} --step ${step} --page ${page}`);
    expect(code).toBe(0);
    const html = readFileSync(page, 'utf8');
    expect(html.match(/<th scope="row">\d+<\/th>/g)).toHaveLength(12);
    expect(html.indexOf('QZ#x&lt;b>@')).toBeLessThan(html.indexOf('row 1 ok'));
    expect(html).not.toContain('<b>');
    expect(html).toContain(`<td class="from">${data}, line 126</td>`);
    expect(out.split('\n')[4]).toMatch(/^ +5 .* rows\.jsonl, line 126 +QZ#x<b>@$/);
  });

  it('names file and line of each document of a row, as long as files are what they were', async () => {
    const [folder, root] = [newFolder(), newFolder()];
    const files = ['a.jsonl', 'b.jsonl'].map((name) => join(folder, name));
    for (const [i, file] of files.entries()) {
      const lines = Array.from({ length: 20 }, (_, line) => ['', `{"text":"${i}${line}"}`]);
      writeFileSync(file, lines.flat().join('\n')); // every other line is empty
    }
    const run = join(root, 'run');
    const flags = tiny.replace(/--data \S+/, `--data ${folder}`).replace('--batch 12', '--batch 5');
    expect(await cli(`${flags} --strategy single --steps 2 --out ${run}`)).toMatchObject({
      code: 0,
    });
    const { rows } = await replayed(run, 2);
    const names = new Set<string>();
    for (const { places, texts } of rows) {
      expect(places.length).toBeGreaterThan(1);
      const told = places.map((place) => {
        const [, file, line] = /^(.+), line (\d+)$/.exec(place)!;
        names.add(file!);
        return JSON.parse(readFileSync(file!, 'utf8').split('\n')[Number(line) - 1]!).text;
      });
      expect(texts).toEqual(told);
    }
    expect([...names].sort()).toEqual(files);
    const { out } = await cli(`replay ${run} --step 2 --rows`);
    expect(out).toMatch(/ [ab]\.jsonl, line \d+ \.\. [ab]\.jsonl, line \d+ \(\d\) /);
    writeFileSync(files[1]!, readFileSync(files[1]!, 'utf8').replace('0', '5'));
    const changed = await cli(`replay ${run} --step 2 --rows`);
    expect(changed.out).toMatch(/, line \d+ of all its files \.\. /);
  });
});
