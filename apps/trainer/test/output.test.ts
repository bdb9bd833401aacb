import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import { describe, expect, it, vi } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { resolveConfig } from '../src/config/resolve-config.js';
import { formatBytes, formatCount, formatMs } from '../src/format.js';
import { PRESETS } from '../src/model/presets.js';
import { headerLines } from '../src/output/header.js';
import { lossChart } from '../src/output/loss-chart.js';
import { RunDirectory } from '../src/output/run-directory.js';
import type { StepLine } from '../src/output/run-records.js';
import { stepLine } from '../src/output/step-line.js';
import { Terminal } from '../src/output/terminal.js';
import type { RankReady, StepMetrics } from '../src/rank/events.js';
import { parseFlags } from './support/parse-flags.js';

const METRICS: StepMetrics = {
  step: 120,
  loss: 3.41274,
  targets: 4096,
  gradNorm: 0.9124,
  lr: 2.7e-4,
  lossScale: 1,
  skipped: false,
  stepMs: 182.4,
  tokensPerSecond: 11_234,
  tokens: 245_760,
  epoch: 0.25,
};
const PACE = { isDue: true, loss: METRICS.loss, elapsedMs: 22_000, leftMs: 161_000 };
const RESOURCES = { peakBytes: 412 * 2 ** 20, wireBytes: 38.4 * 2 ** 20 };

/** How a line begins while a progress bar is shown. */
const CLEAR_LINE = '\r\u001b[2K';

class Sink extends Writable {
  text = '';
  readonly isTTY: boolean;
  readonly columns: number;
  constructor(isTTY: boolean, columns = 80) {
    super();
    this.isTTY = isTTY;
    this.columns = columns;
  }
  override _write(chunk: Buffer, _: string, done: () => void): void {
    this.text += chunk.toString();
    done();
  }
  cursorTo(): void {}
  clearLine(): void {}
}

describe('numbers', () => {
  it('are short', () => {
    expect([0, 1023, 1024, 38.4 * 2 ** 20, 412 * 2 ** 20].map(formatBytes)).toEqual([
      '0 B',
      '1023 B',
      '1.0 KiB',
      '38.4 MiB',
      '412 MiB',
    ]);
    expect([9, 999, 11_234, 842_496, 124_439_808].map(formatCount)).toEqual([
      '9',
      '999',
      '11.2k',
      '842k',
      '124M',
    ]);
    expect([3.21, 182.4, 12_100].map(formatMs)).toEqual(['3.2 ms', '182 ms', '12.1 s']);
  });
});

describe('the step line', () => {
  it('has what a person looks for', () => {
    expect(stepLine(METRICS, RESOURCES, { steps: 1000, pace: PACE }).replace(/ +/g, ' ')).toBe(
      'step 120/1000 | loss 3.4127 | norm 0.91 | lr 2.7e-4 | 182 ms | 11.2k tok/s | 246k tokens | epoch 0.25 | 22 s, 2 min 41 s left | peak 412 MiB | wire 38.4 MiB',
    );
  });

  it('keeps its columns', () => {
    const lines = [
      stepLine(METRICS, RESOURCES, { steps: 1000, pace: PACE }),
      stepLine(
        {
          ...METRICS,
          step: 1,
          loss: 11.5,
          gradNorm: 123.4,
          lr: 1e-5,
          stepMs: 3.2,
          tokensPerSecond: 900,
        },
        { peakBytes: 1000, wireBytes: 0 },
        { steps: 1000, pace: { ...PACE, loss: 11.5, elapsedMs: 900, leftMs: 3e6 } },
      ),
    ];
    const bars = lines.map((line) => [...line.matchAll(/\|/g)].map((match) => match.index));
    expect(bars[1]).toEqual(bars[0]);
  });

  it('says when a step was skipped', () => {
    const skipped = { ...METRICS, gradNorm: null, skipped: true };
    const line = stepLine(skipped, RESOURCES, { steps: 1000, pace: PACE });
    expect(line).toMatch(/norm +inf .*skipped: overflow$/);
    const empty = { ...skipped, loss: Number.NaN, targets: 0 };
    const pace = { ...PACE, loss: Number.NaN };
    const emptyLine = stepLine(empty, RESOURCES, { steps: 1000, pace });
    expect(emptyLine).toMatch(/loss +- \| norm +- .*skipped: no targets$/);
    expect(emptyLine.indexOf('| lr')).toBe(line.indexOf('| lr'));
  });
});

describe('the step line on a narrow terminal', () => {
  it('leaves out what matters least, and stays one line', () => {
    const skipped = { ...METRICS, skipped: true };
    for (const width of [30, 60, 80, 100, 120]) {
      const line = stepLine(METRICS, RESOURCES, { steps: 1000, pace: PACE, width });
      expect(line.length).toBeLessThanOrEqual(Math.max(width, 44));
      expect(line).toMatch(/^step {2}120\/1000 \| loss {2}3\.4127 .*182 ms/);
      expect(stepLine(skipped, RESOURCES, { steps: 1000, pace: PACE, width })).toMatch(
        /skipped: overflow$/,
      );
    }
    const at80 = stepLine(METRICS, RESOURCES, { steps: 1000, pace: PACE, width: 80 });
    expect(at80).toContain('tok/s');
    expect(at80).not.toContain('wire');
  });

  it('is what a terminal of 80 columns gets, and no file', () => {
    const [narrow, file] = [true, false].map((isTTY) => {
      const out = new Sink(isTTY);
      const made = new Terminal({ out, err: new Sink(false), isQuiet: false, env: {}, steps: 9 });
      made.step(METRICS, RESOURCES);
      return out.text;
    });
    expect(narrow!.trimEnd().length).toBeLessThanOrEqual(80);
    expect(file).toContain('| wire 38.4 MiB\n');
  });
});

describe('Terminal', () => {
  const terminal = (isTTY: boolean, over: { isQuiet?: boolean; env?: NodeJS.ProcessEnv } = {}) => {
    const out = new Sink(isTTY);
    const err = new Sink(isTTY);
    const made = new Terminal({ out, err, isQuiet: false, env: {}, steps: 1000, ...over });
    made.header(['model   x']);
    made.step({ ...METRICS, skipped: true }, RESOURCES);
    made.sample('Call me', ' Ishmael');
    made.close();
    return { out: out.text, err: err.text, made, errSink: err };
  };
  const ESCAPE = '\u001b';

  it('is plain lines without bar when redirected', () => {
    const { out, err } = terminal(false);
    expect(out).not.toContain(ESCAPE);
    expect(out.split('\n')[0]).toBe('model   x');
    expect(out).toContain('Call me Ishmael');
    expect(err).toBe('');
  });

  it('has a line in so many steps, and of those that people look for', () => {
    const out = new Sink(false);
    const options = { out, err: new Sink(false), isQuiet: false, env: {}, steps: 11, logEvery: 4 };
    const made = new Terminal(options);
    for (let step = 1; step <= 11; step++) {
      const more = step === 6 ? { validLoss: 3 } : { skipped: step === 7 };
      made.step({ ...METRICS, step, ...more }, RESOURCES);
    }
    expect([...out.text.matchAll(/^step +(\d+)/gm)].map(([, step]) => Number(step))).toEqual([
      ...[1, 4, 6, 7, 8, 11],
    ]);
  });

  it('has the first ten steps, then at most two in a second', () => {
    let nowMs = 0;
    const out = new Sink(false);
    const options = { out, err: new Sink(false), isQuiet: false, env: {}, steps: 1000 };
    const made = new Terminal({ ...options, now: () => nowMs });
    for (let step = 1; step <= 200; step++) {
      nowMs += 10;
      const more = step === 33 ? { validLoss: 3 } : {};
      made.step({ ...METRICS, step, ...more }, RESOURCES);
    }
    const shown = [...out.text.matchAll(/^step +(\d+)/gm)].map(([, step]) => Number(step));
    expect(shown).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 33, 83, 133, 183]);
  });

  it('has all slow steps for a minute, then one in ten seconds with the mean loss since', () => {
    let nowMs = 0;
    const out = new Sink(false);
    const options = { out, err: new Sink(false), isQuiet: false, env: {}, steps: 100 };
    const made = new Terminal({ ...options, now: () => nowMs });
    // The run goes on behind step 60. Each step takes 2 s, of which half is its own.
    for (let step = 61; step <= 100; step++) {
      nowMs += 2000;
      made.step({ ...METRICS, step, loss: step, stepMs: 1000, targets: step }, RESOURCES);
    }
    const lines = [
      ...out.text.matchAll(/^step +(\d+)\/100 \| loss +([\d.]+) .*? \| +([^|]*left)/gm),
    ];
    const shown = lines.map(([, step]) => Number(step));
    expect(shown.slice(0, 30)).toEqual(Array.from({ length: 30 }, (_, i) => 61 + i));
    expect(shown.slice(30)).toEqual([95, 100]);
    const mean = (91 ** 2 + 92 ** 2 + 93 ** 2 + 94 ** 2 + 95 ** 2) / (91 + 92 + 93 + 94 + 95);
    expect(lines[30]![2]).toBe(mean.toFixed(4));
    expect(lines[9]![3]!.replace(/ +/g, ' ')).toBe('19 s, 1 min left');
  });

  it('has a header that fits its width', () => {
    const out = new Sink(true, 40);
    const env = { NO_COLOR: '1' };
    const made = new Terminal({ out, err: new Sink(false), isQuiet: false, env, steps: 1 });
    const path = '/a/path/that/is/longer/than/the/terminal';
    made.header([`adamw   ${'lr 0.1 cosine, '.repeat(5)}seed 1`, `out     ${path}`]);
    const lines = out.text.trimEnd().split('\n');
    expect(Math.max(...lines.map(({ length }) => length))).toBeLessThanOrEqual(40);
    expect(lines.slice(0, 2)).toEqual([
      'adamw   lr 0.1 cosine, lr 0.1 cosine, lr',
      '        0.1 cosine, lr 0.1 cosine, lr',
    ]);
    expect(lines.map((line) => line.slice(8)).join('')).toContain(path);
  });

  it('has colors and a bar on a terminal, and no colors with NO_COLOR', () => {
    const colored = terminal(true);
    expect(colored.out).toContain(ESCAPE);
    expect(colored.err).toMatch(/120\/1000|0\/1000/);
    // Returning to where the bar began would overwrite lines that were printed since.
    for (const code of '78') {
      expect(colored.err).not.toContain(`${ESCAPE}${code}`);
    }
    expect(terminal(true, { env: { NO_COLOR: '1' } }).out).not.toContain(ESCAPE);
  });

  it('shows on a terminal how far the tokens are, and takes the bar away', () => {
    for (const isTTY of [true, false]) {
      const out = new Sink(false);
      const err = new Sink(isTTY);
      const made = new Terminal({ out, err, isQuiet: false, env: {}, steps: 1 });
      made.progress('batches', 3, 10);
      expect(err.text).toMatch(isTTY ? /%.*left \| 3\/10 \| batches/ : /^$/);
      made.progress('batches', 10, 10);
      made.note('on goes the run');
      // The text is whole, because a line is only cleared of a bar while there is one.
      expect(out.text).toBe('on goes the run\n');
      expect(err.text.endsWith(CLEAR_LINE)).toBe(false);
    }
  });

  it('shows how many bytes have become tokens, without a terminal where there are many', () => {
    const MIB = 2 ** 20;
    for (const isTTY of [true, false]) {
      const err = new Sink(isTTY);
      const made = new Terminal({ out: new Sink(false), err, isQuiet: false, env: {}, steps: 1 });
      made.tokenizing('few.txt', 0, 10 * MIB);
      made.tokenizing('few.txt', 10 * MIB, 10 * MIB);
      expect(err.text).toMatch(isTTY ? /left \| 0 B of 10\.0 MiB \| tok/ : /^$/);
      for (const part of [0, 30, 31, 60, 95, 300]) {
        made.tokenizing('many.txt', part * MIB, 300 * MIB);
      }
      if (!isTTY) {
        expect(err.text.split('\n')).toEqual([
          '0 B of 300 MiB | tokens of many.txt',
          '30.0 MiB of 300 MiB | tokens of many.txt',
          '60.0 MiB of 300 MiB | tokens of many.txt',
          '95.0 MiB of 300 MiB | tokens of many.txt',
          '300 MiB of 300 MiB | tokens of many.txt',
          '',
        ]);
      }
    }
  });

  it('shows an evaluation beside the bar of the steps, until it is done', async () => {
    const err = new Sink(true);
    const made = new Terminal({ out: new Sink(false), err, isQuiet: false, env: {}, steps: 9 });
    made.evaluating(1, 3); // before there is a bar
    expect(err.text).toBe('');
    made.header([]);
    // The bar draws itself ten times a second at most.
    await vi.waitFor(() => {
      made.evaluating(2, 3);
      expect(err.text).toMatch(/0\/9 \| starting \| evaluating 2\/3/);
    });
    const { length } = err.text;
    made.evaluating(3, 3);
    made.note('a line');
    made.close();
    expect(err.text.slice(length)).not.toContain('evaluating');
  });

  it('says on a terminal what is done, until something else is shown', () => {
    for (const isTTY of [true, false]) {
      const out = new Sink(false);
      const err = new Sink(isTTY);
      const env = { NO_COLOR: '1' };
      const made = new Terminal({ out, err, isQuiet: false, env, steps: 1 });
      made.doing('checking what fits');
      made.doing('starting 2 ranks');
      made.note('here they are');
      made.doing('writing a text');
      made.warn('no room');
      made.note('done');
      const shown = `checking what fits ...${CLEAR_LINE}starting 2 ranks ...${CLEAR_LINE}writing a text ...${CLEAR_LINE}`;
      expect(err.text).toBe(`${isTTY ? shown : ''}warning: no room\n`);
      expect(out.text).toBe('here they are\ndone\n');
    }
  });

  it('says a warning once, on stderr, and keeps the bar off its line', () => {
    const out = new Sink(false);
    const err = new Sink(true);
    const made = new Terminal({ out, err, isQuiet: false, env: { NO_COLOR: '1' }, steps: 1 });
    expect([made.warn('no room'), made.warn('no room'), made.warn('slow')]).toEqual([
      true,
      false,
      true,
    ]);
    expect(err.text).toBe('warning: no room\nwarning: slow\n');
    made.header([]);
    made.warn('late');
    expect(err.text.endsWith(`${CLEAR_LINE}warning: late\n`)).toBe(true);
    made.close();
    expect(out.text).toBe('');
  });

  it('lets no text of the model command the terminal', () => {
    const out = new Sink(false);
    const err = new Sink(false);
    const made = new Terminal({ out, err, isQuiet: false, env: {}, steps: 1 });
    made.sample('', 'a\u001b[2Jb\n\u009bc');
    expect(out.text).toBe('\na\u00b7[2Jb\n\u00b7c\n\n');
  });

  it('says nothing but failures when quiet', () => {
    const { out, err, made, errSink } = terminal(true, { isQuiet: true, env: { NO_COLOR: '1' } });
    expect(out + err).toBe('');
    made.failure('rank 1 is gone');
    expect(errSink.text).toBe('error: rank 1 is gone\n');
  });
});

const ready: RankReady = {
  rank: 0,
  device: 'cpu',
  description: 'wasm',
  isSoftware: true,
  host: 'here',
  numericClass: 'cpu kernels 1',
  params: 5,
  shardBytes: 4,
  data: { tokens: 9, documents: 0, cut: 0, pieces: 0, rows: 1000 },
  valid: undefined,
};

describe('the header', () => {
  const header = async (line: string, ranks = [ready]) => {
    const flags = parseFlags(line.split(' ').filter(Boolean), () => {});
    return headerLines(await resolveConfig(flags), ranks);
  };

  it('says where ranks meet that do not compute alike', async () => {
    const other = { ...ready, numericClass: 'webgpu kernels 1 for hardware (X)' };
    const notes = async (ranks: RankReady[]) =>
      (await header('', ranks)).filter((row) => row.includes('numeric classes'));
    expect(await notes([ready, { ...ready, rank: 1 }])).toEqual([]);
    expect(await notes([ready, { ...other, rank: 1 }, { ...ready, rank: 2 }])).toEqual([
      'note    ranks compute in 2 numeric classes (cpu kernels 1; webgpu kernels 1 for hardware (X)): another division of the ranks has other bits',
    ]);
  });

  it('says how often the data is learnt, and warns where that is too often', async () => {
    const rows = async (line: string, data: Partial<RankReady['data']>) =>
      (await header(line, [{ ...ready, data: { ...ready.data, ...data } }])).filter((row) =>
        /^(step|data|note)/.test(row),
      );
    expect(await rows('--steps 10 --batch 4 --seq 8 --tokenizer byte', { rows: 2 })).toEqual([
      'data    Moby Dick: 9 tokens (byte), shuffle',
      'step    4 rows of 8 tokens, 10 steps = 20 epochs of 2 rows',
    ]);
    expect(
      await rows('--batch 16 --seq 8', { rows: 7, documents: 40, cut: 3, pieces: 625 }),
    ).toEqual([
      'data    Moby Dick: 9 tokens in 40 documents, 3 of them longer than a row and cut in 625 pieces (byte), shuffle',
      'step    16 rows of 8 tokens, 480 steps = 1,097 epochs of 7 rows',
      'note    each row is learnt 1,097 times, and a model then knows it by heart: --epochs 3 is usual',
    ]);
    const few = async (count: number) =>
      (await rows('--steps 1 --batch 1 --seq 8', { rows: count }))[1];
    expect(await few(3)).toMatch(/1 step = 0\.33 epochs of 3 rows$/);
    expect(await few(90_000)).toMatch(/1 step = 0\.000011 epochs of 90\.0k rows$/);
  });

  it('says which ranks have no rows, and that the warm-up is longer than the run', async () => {
    const notes = async (line: string) =>
      (await header(line)).filter((row) => row.startsWith('note'));
    expect(await notes('--batch 2 --ranks 2')).toEqual([]);
    expect(await notes('--batch 2 --ranks 3')).toEqual([
      "note    ranks from 2 on have none of a step's 2 rows, and compute nothing: --batch 3 gives each one",
    ]);
    const warmUp = async (line: string) => (await header(line)).join().match(/warm-up [^,]*/)![0];
    expect(await warmUp('--warmup 20 --steps 20')).toBe('warm-up 20');
    expect(await warmUp('--warmup 20 --steps 19')).toBe('warm-up 20 (longer than the run)');
  });

  it('says which labels differ by case alone', async () => {
    const labels = ['Ham', 'Spam', 'ham', 'rain', 'spam'];
    const problemType = 'single_label_classification';
    const rows = await header('', [{ ...ready, head: { kind: 'classify', labels, problemType } }]);
    expect(rows.filter((row) => row.startsWith('note'))).toEqual([
      'note    the labels Ham and ham are different ones, by case alone',
      'note    the labels Spam and spam are different ones, by case alone',
    ]);
  });

  it('says what a process held, which is more than its device', async () => {
    const held = (line: string) =>
      header(line, [
        { ...ready, processBytes: 2 ** 30 },
        { ...ready, rank: 1, processBytes: 2 ** 31 },
      ]);
    expect(await held('--ranks 2 --transport ws')).toContain(
      "memory  2.0 GiB at most in a rank's process while the run was set up",
    );
    expect(await held('--ranks 2')).toContain(
      'memory  2.0 GiB at most in the process of all ranks while the run was set up',
    );
  });

  it('says when a directory has no weights', async () => {
    const directory = newFolder();
    writeFileSync(join(directory, 'config.json'), JSON.stringify(PRESETS.nano.config));
    const weights = /^weights random ones: there are no weights beside/m;
    expect((await header(`--model ${directory}`)).join('\n')).toMatch(weights);
    writeFileSync(join(directory, 'model.safetensors'), '');
    expect((await header(`--model ${directory}`)).join('\n')).not.toMatch(weights);
  });
});

describe('RunDirectory', () => {
  it('writes a line a step, a summary and a chart', () => {
    const path = join(newFolder(), 'a', 'run');
    const run = new RunDirectory(path);
    const overflow = { ...METRICS, step: 2, loss: 2, gradNorm: null, skipped: true };
    const empty = { ...METRICS, loss: null, targets: 0, gradNorm: null, skipped: true };
    const step = (metrics: Omit<StepLine, 'atMs'>) =>
      run.add({ type: 'step', ...metrics, atMs: 1 });
    step({ ...METRICS, step: 1, loss: 3, validLoss: 2.5 });
    step(overflow);
    step({ ...empty, step: 3 });
    step({ ...empty, step: 4 });
    const end = { step: 4, steps: 9, why: 'time' } as const;
    run.finish({ ready: [ready], reports: [], end }, 'tiny');
    run.close();
    const lines = readFileSync(join(path, 'metrics.jsonl'), 'utf8').trimEnd().split('\n');
    expect(lines.map((line) => JSON.parse(line))).toEqual([
      { ...METRICS, step: 1, loss: 3, validLoss: 2.5, atMs: 1 },
      { ...overflow, atMs: 1 },
      { ...empty, step: 3, atMs: 1 },
      { ...empty, step: 4, atMs: 1 },
    ]);
    expect(JSON.parse(readFileSync(join(path, 'summary.json'), 'utf8'))).toEqual({
      params: 5,
      finalLoss: 2, // This is the loss of the last step with targets.
      validLoss: 2.5,
      skippedSteps: { overflow: 1, noTargets: 2 },
      device: 'cpu (wasm)',
      numericClass: 'cpu kernels 1',
      ranks: [],
      end,
    });
    expect(readFileSync(join(path, 'loss.svg'), 'utf8')).toContain('<path d="M');
  });

  it('takes a directory with other files', () => {
    const path = newFolder();
    writeFileSync(join(path, 'notes.txt'), '');
    new RunDirectory(path).close();
  });
});

describe('lossChart', () => {
  it('draws every finite loss inside its frame', () => {
    const svg = lossChart([5, 4, Number.NaN, 3, Number.POSITIVE_INFINITY], 'a < b & c');
    expect(svg).toContain('a &lt; b &amp; c');
    const path = svg.match(/<path d="([^"]*)"/)![1]!;
    const points = [...path.matchAll(/([\d.]+),([\d.]+)/g)].map((match) => [
      Number(match[1]),
      Number(match[2]),
    ]);
    expect(points).toHaveLength(3);
    for (const [x, y] of points) {
      expect(x).toBeGreaterThanOrEqual(56);
      expect(x).toBeLessThanOrEqual(700);
      expect(y).toBeGreaterThanOrEqual(36);
      expect(y).toBeLessThanOrEqual(356);
    }
    expect(points.map(([, y]) => y)).toEqual(points.map(([, y]) => y).sort((a, b) => a! - b!));
  });

  it('draws a million losses in few points, with the one that stands out', () => {
    const losses = Array.from({ length: 1e6 }, (_, i) => (i === 123_456 ? 9 : 2 + (i % 3)));
    const svg = lossChart(losses, '');
    expect(svg.length).toBeLessThan(60_000);
    const ys = [...svg.matchAll(/[ML][\d.]+,([\d.]+)/g)].map(([, y]) => Number(y));
    expect(ys.filter((y) => y === 36)).toHaveLength(1); // the top of the frame
  });

  it('a chart of nothing, or of one value, is still an SVG', () => {
    for (const losses of [[], [2], [2, 2]]) {
      expect(lossChart(losses, '')).not.toMatch(/NaN|Infinity/);
    }
  });
});
