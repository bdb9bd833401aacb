// The dashboard of a folder: which runs are in it, how they are, and what a page is told of them as
// they come, go on and go.

import { mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { lockDirectory, nodeFiles } from '@shardweave/shard-store/node';
import { afterEach, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import type { CommandContext } from '../src/commands/cli-command.js';
import { dashboard as command } from '../src/commands/dashboard.js';
import { RunsDashboard } from '../src/dashboard/runs-dashboard.js';
import { RunsFolder } from '../src/dashboard/runs-folder.js';
import { TOKEN_VARIABLE } from '../src/dashboard/token.js';
import { SignalError } from '../src/errors.js';
import { Interrupt } from '../src/interrupt.js';
import { reportOf } from '../src/output/report.js';
import type { RunRow, RunsMessages } from '../src/page/run/page-data.js';
import { unpackSteps } from '../src/page/run/step-table.js';
import { differing, found, ordered, RUN_COLUMNS } from '../src/page/runs-rows.js';
import { shortTexts } from '../src/page/short-texts.js';
import { addLines, BEGUN_MS, madeLine, makeRun } from './support/made-runs.js';

const TOKEN = 'a-token-that-the-test-has-made';
const env = { [TOKEN_VARIABLE]: TOKEN };
/** The files of an owner on another machine, who may live. */
const STRANGER = ['shardweave-owner.1', 'shardweave-owner.1.9.9.1.else.where'];

async function rowsOf(folder: RunsFolder): Promise<Record<string, RunRow>> {
  await folder.refresh();
  return Object.fromEntries(folder.rows.map((row) => [row.name, row]));
}

describe('the runs of a folder', () => {
  it('are found at any sensible depth, by their own names, without what is inside of them', async () => {
    const path = newFolder();
    makeRun(join(path, 'a'));
    makeRun(join(path, 'sweep/lr/b'));
    makeRun(join(path, 'a/saves/inner'));
    makeRun(join(path, '.hidden/c'));
    makeRun(join(path, '1/2/3/4/5'));
    symlinkSync(join(path, 'a'), join(path, 'link'));
    mkdirSync(join(path, 'empty'));
    expect(Object.keys(await rowsOf(new RunsFolder(path))).sort()).toEqual(['a', 'sweep/lr/b']);
    const [own] = Object.keys(await rowsOf(new RunsFolder(join(path, 'a'))));
    expect(own).toBe('a');
  });

  it('have what their files say: the last numbers, the best evaluation and the settings', async () => {
    const path = newFolder();
    const lineOf = (step: number) =>
      madeLine(step, {
        loss: step === 20 ? null : 5 - step / 10,
        ...(step % 5 === 0 && { validLoss: Math.abs(10 - step) + 1 }),
      });
    const config = { lr: 0.001, data: '/texts/a.txt', device: ['cpu', 'webgpu'], out: '/x' };
    makeRun(join(path, 'stopped'), { lineOf, config, end: 'stopped' });
    const summary = { finalLoss: 1.5, validLoss: 3, final: { step: 9, best: { validLoss: 2 } } };
    makeRun(join(path, 'done'), { lineOf, end: 'done', summary });
    const rows = await rowsOf(new RunsFolder(path));
    expect(rows.stopped).toMatchObject({
      ...{ state: 'stopped', step: 20, steps: 100, loss: 5 - 1.9, validLoss: 1 },
      ...{ tokensPerSecond: 900, peakBytes: 4096, atMs: BEGUN_MS + 1000 },
      settings: { steps: 100, lr: 0.001, data: '/texts/a.txt', device: '["cpu","webgpu"]' },
    });
    expect(rows.stopped!.settings).not.toHaveProperty('out');
    expect(rows.done).toMatchObject({ state: 'done', loss: 1.5, validLoss: 2 });
  });

  it('are live while somebody is at work, and killed where nobody is or gives a sign', async () => {
    const path = newFolder();
    for (const name of ['held', 'left', 'silent', 'elsewhere']) {
      makeRun(join(path, name));
    }
    const lock = await lockDirectory(nodeFiles, join(path, 'held'));
    for (const name of STRANGER) {
      writeFileSync(join(path, 'silent', name), '');
      writeFileSync(join(path, 'elsewhere', name), '');
    }
    addLines(join(path, 'elsewhere'), 'metrics.jsonl', [madeLine(21, { atMs: Date.now() })]);
    const folder = new RunsFolder(path);
    const rows = await rowsOf(folder);
    const states = Object.entries(rows).map(([name, { state }]) => [name, state]);
    expect(Object.fromEntries(states)).toEqual({
      ...{ held: 'live', left: 'killed', silent: 'killed', elsewhere: 'live' },
    });
    expect(rows.silent!.sign).toMatch(/^no sign of life for \d+ d/);
    expect(rows.left!.sign).toBeUndefined();
    // The page of a report says the same.
    const html = await reportOf([join(path, 'silent'), join(path, 'held')]);
    expect(html).toMatch(/"state":"killed","isLive":false,"sign":"no sign of life/);
    expect(html).toContain('"state":"live","isLive":true');
    await lock.release();
    expect((await rowsOf(folder)).held!.state).toBe('killed');
  });

  it('change by what is added, come and go, and begin anew where a run goes on', async () => {
    const path = newFolder();
    const first = makeRun(join(path, 'first'), { steps: 5 });
    const folder = new RunsFolder(path);
    expect((await folder.refresh()).rows).toHaveLength(1);
    expect(await folder.refresh()).toEqual({ rows: [], gone: [] });
    addLines(first, 'metrics.jsonl', [madeLine(6, { loss: 0.5, validLoss: 0.25 })]);
    writeFileSync(join(first, 'metrics.jsonl'), '{"step":7,"lo', { flag: 'a' });
    const [changed] = (await folder.refresh()).rows;
    expect(changed).toMatchObject({ step: 6, loss: 0.5, validLoss: 0.25 });
    rmSync(join(first, 'metrics.jsonl'));
    makeRun(first, { steps: 2 });
    expect((await folder.refresh()).rows[0]).toMatchObject({ step: 2, validLoss: undefined });
    makeRun(join(path, 'second'));
    await expect
      .poll(async () => (await folder.refresh()).rows.map(({ name }) => name))
      .toEqual(['second']);
    const { id } = changed!;
    rmSync(first, { recursive: true });
    expect((await folder.refresh()).gone).toEqual([id]);
    expect(folder.find(id)).toBeUndefined();
  });
});

describe('what a page is told of a folder', () => {
  let shown: RunsDashboard | undefined;
  const stop = new Set<AbortController>();
  afterEach(async () => {
    for (const each of stop) {
      each.abort();
    }
    await shown?.close();
  });

  /** Follows what is told to a page that asks for `runs`. */
  async function follow(runs: string, token = TOKEN) {
    const { origin } = new URL(shown!.url);
    const ended = new AbortController();
    stop.add(ended);
    const answer = await fetch(`${origin}/events?${new URLSearchParams({ runs })}`, {
      headers: { Authorization: `Bearer ${token}` },
      signal: ended.signal,
    });
    const messages: { readonly name: string; readonly data: unknown }[] = [];
    const read = async () => {
      let text = '';
      for await (const piece of answer.body!.pipeThrough(new TextDecoderStream())) {
        const parts = (text + piece).split('\n\n');
        text = parts.pop()!;
        for (const part of parts) {
          const [, name, data] = /^event: (\w+)\ndata: (.*)$/s.exec(part)!;
          messages.push({ name: name!, data: JSON.parse(data!) });
        }
      }
    };
    void read().catch(() => {});
    /** The first message of a name that fits. */
    const told = <Name extends keyof RunsMessages>(
      name: Name,
      fits: (data: RunsMessages[Name]) => boolean = () => true,
    ) =>
      expect
        .poll(() => messages.find((one) => one.name === name && fits(one.data as never))?.data, {
          timeout: 30_000,
        })
        .toBeDefined()
        .then(
          () => messages.find((one) => one.name === name && fits(one.data as never))!.data,
        ) as Promise<RunsMessages[Name]>;
    return { status: answer.status, told, messages };
  }

  it('is all rows, everything of those that it names, and then what comes', async () => {
    const path = newFolder();
    const first = makeRun(join(path, 'first'), { steps: 5 });
    makeRun(join(path, 'second'), { steps: 3 });
    shown = await RunsDashboard.open(path, { port: 0, env });
    const { told: index } = await follow('');
    const { folder, rows } = await index('runs');
    expect([folder, rows.map(({ name }) => name).sort()]).toEqual([path, ['first', 'second']]);
    const ids = ['second', 'first'].map((name) => rows.find((row) => row.name === name)!.id);
    expect(ids.join()).not.toContain('first');
    const { told } = await follow(ids.join());
    const chosen = await told('chosen');
    expect(chosen.map(({ name, state, isLive }) => [name, state, isLive])).toEqual([
      ['second', 'killed', false],
      ['first', 'killed', false],
    ]);
    expect(chosen[1]!.records).toMatchObject([{ type: 'steps' }, { type: 'run' }]);
    addLines(first, 'metrics.jsonl', [madeLine(6), madeLine(7)]);
    addLines(first, 'events.jsonl', [{ type: 'runEnd', end: 'done', atMs: 9 }]);
    const { records } = await told('added', ({ id }) => id === ids[1]);
    const lines = records.flatMap((one) => (one.type === 'steps' ? unpackSteps(one) : []));
    expect(lines.map(({ step }) => step)).toEqual([6, 7]);
    expect(records.at(-1)).toMatchObject({ type: 'runEnd' });
    // Whoever looks at the table alone hears of the row.
    const changed = await index('changed', ({ rows: [row] }) => row?.state === 'done');
    expect(changed.rows[0]).toMatchObject({ name: 'first', step: 7, state: 'done' });
    // A run that goes on after an earlier step is told anew.
    writeFileSync(join(first, 'events.jsonl'), '{"type":"run","steps":9,"ranks":1,"atMs":1}\n');
    writeFileSync(join(first, 'metrics.jsonl'), `${JSON.stringify(madeLine(1))}\n`);
    const again = await told('chosen', ([, run]) => JSON.stringify(run).includes('"steps":9'));
    const [table] = again[1]!.records;
    expect(table?.type === 'steps' ? unpackSteps(table) : []).toHaveLength(1);
  });

  it('is nothing of a path, of a run outside, or without the token', async () => {
    const path = newFolder();
    makeRun(join(path, 'inside/a'));
    makeRun(join(path, 'outside'));
    shown = await RunsDashboard.open(join(path, 'inside'), { port: 0, env });
    for (const asked of ['../outside', join(path, 'outside'), 'a', 'x'.repeat(5000)]) {
      expect(await (await follow(asked)).told('chosen')).toEqual([]);
    }
    const many = Array.from({ length: 50 }, (_, i) => `r${i}`).join();
    expect(await (await follow(many)).told('chosen')).toEqual([]);
    expect((await follow('', 'a-token-that-somebody-guesses')).status).toBe(401);
  });
});

describe('the table of runs', () => {
  const row = (name: string, over: Partial<RunRow> = {}): RunRow => ({
    ...{ id: name, name, state: 'done', step: 1, settings: { lr: 1, seed: 5 } },
    ...over,
  });
  const nameColumn = RUN_COLUMNS[0]!;
  const lossColumn = RUN_COLUMNS.find(({ key }) => key === 'loss')!;

  it('has a column for each setting that differs between the runs, and for no other', () => {
    const rows = [
      row('a'),
      row('b', { settings: { lr: 2, seed: 5, final: 'best' } }),
      row('c', { settings: {} }), // its config.yaml comes with the first step
    ];
    expect(differing(rows).map(({ title }) => title)).toEqual(['lr', 'final']);
    expect(differing(rows.slice(0, 1))).toEqual([]);
  });

  it('orders numbers by size and names by their numbers, and those without a value last', () => {
    const rows = [row('run-10', { loss: 10 }), row('run-9', { loss: 9 }), row('run-2')];
    const names = (column: typeof nameColumn, isDescending: boolean) =>
      ordered(rows, column.read, { isDescending }).map(({ name }) => name);
    expect(names(nameColumn, false)).toEqual(['run-2', 'run-9', 'run-10']);
    expect(names(lossColumn, false)).toEqual(['run-9', 'run-10', 'run-2']);
    expect(names(lossColumn, true)).toEqual(['run-10', 'run-9', 'run-2']);
  });

  it('finds runs that have each word in name, state or a setting', () => {
    const rows = [row('Sweep/a', { state: 'killed' }), row('b', { settings: { lr: 0.001 } })];
    const names = (text: string) => found(rows, text).map(({ name }) => name);
    expect(names('sweep KILL')).toEqual(['Sweep/a']);
    expect(names('lr=0.001')).toEqual(['b']);
    expect(names(' ')).toHaveLength(2);
    expect(names('sweep lr=0.001')).toEqual([]);
  });

  it.each([
    ['lr=4e-3', 'b'],
    ['lr=0.004 ', 'b'],
    ['lr<0.01', 'a b'],
    ['lr<=4E-3 loss>=2', 'b'],
    ['lr>0.004', 'c'],
    ['validloss>0', ''],
    ['steps=1', 'a'], // no text, of which 16 would have a part
    ['data=tex', 'a'],
    ['data<3', ''],
  ])('compares numbers in a filter such as %s', (text, wanted) => {
    const rows = [
      row('a', { loss: 1, settings: { lr: 1e-3, steps: 1, data: 'text' } }),
      row('b', { loss: 2, settings: { lr: 4e-3, steps: 16 } }),
      row('c', { loss: 3, settings: { lr: 0.4, steps: 16 } }),
    ];
    expect(found(rows, text).map(({ name }) => name)).toEqual(wanted.split(' ').filter(Boolean));
  });

  it('cuts long texts where they are equal, and never to equal ones', () => {
    const deep = '/data/everybody/corpora/news/2026/';
    expect([...shortTexts([`${deep}en.jsonl`, `${deep}de.jsonl`, 'text.txt']).values()]).toEqual([
      ...['\u2026en.jsonl', '\u2026de.jsonl', 'text.txt'],
    ]);
    const clash = [`${deep}x`, `${deep}y`, '\u2026x'];
    expect([...shortTexts(clash).values()]).toEqual(clash);
    const [alone] = shortTexts([`${deep}en.jsonl`]).values();
    expect(alone).toBe('/data/ever\u2026/news/2026/en.jsonl');
    const same = ['x'.repeat(40), 'z'.repeat(40)];
    const close = same.map((text) => `1${'y'.repeat(30)}${text}${'y'.repeat(60)}`);
    expect(new Set(shortTexts(close).values()).size).toBe(2);
  });
});

describe('the command dashboard', () => {
  it('prints the address, ends by Ctrl-C as others do, and refuses what is no folder', async () => {
    const path = newFolder();
    makeRun(join(path, 'a'));
    const interrupt = new Interrupt({ exit: () => {} });
    let said = '';
    const write = (text: string) => {
      said += text;
      interrupt.ask(new SignalError('SIGINT'));
    };
    const context = { args: ['dashboard', path, '--port', '0'], env, out: { write } };
    const running = command.run({
      ...context,
      listen: () => interrupt,
    } as unknown as CommandContext);
    await expect(running).rejects.toMatchObject({ exitCode: 130 });
    expect(said).not.toContain('waits for');
    expect(said).toMatch(/^1 run in .*: http:\/\/127\.0\.0\.1:\d+\/#token=/);
    const file = join(path, 'a/metrics.jsonl');
    expect(readFileSync(file, 'utf8')).not.toBe('');
    const wrong = { ...context, args: ['dashboard', file], listen: () => interrupt };
    await expect(command.run(wrong as unknown as CommandContext)).rejects.toThrow(
      /is no directory/,
    );
  });
});
