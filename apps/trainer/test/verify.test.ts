// verify computes steps again, and finds whatever is not as the record says.

import { cpSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, beforeEach, describe, expect, it, vi } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { runCli } from './support/run-cli.js';
import { tinyFlags } from './support/tiny-run.js';

const root = newFolder();
const cache = join(root, 'cache');
const tiny = `train ${tinyFlags(root)} --cache ${cache} --quiet`;
const cli = (line: string) => runCli(line.split(' '));

/** A run of 8 steps on two ranks, with saves and hashes, and a copy for each test. */
const kept = join(root, 'kept');
let run: string;
beforeAll(async () => {
  const flags = '--ranks 2 --steps 8 --save-every 4 --keep 9 --hash-every 2';
  expect(await cli(`${tiny} ${flags} --out ${kept}`)).toMatchObject({ code: 0 });
});
beforeEach(() => {
  run = join(newFolder(), 'run');
  cpSync(kept, run, { recursive: true });
});

const metrics = () => join(run, 'metrics.jsonl');
/** The lines of the record, of which the one of a step is changed, or removed. */
function changeLine(step: number, change: (line: string) => readonly string[]): void {
  const lines = readFileSync(metrics(), 'utf8').trimEnd().split('\n');
  lines.splice(step - 1, 1, ...change(lines[step - 1]!));
  writeFileSync(metrics(), `${lines.join('\n')}\n`);
}

const saveOf = (step: number) => join(run, 'saves', `step-00000${step}`);

describe('verify', () => {
  it('finds all steps of a run equal, from its beginning', async () => {
    const { code, out, err } = await cli(`verify ${run}`);
    expect([code, err]).toEqual([0, '']);
    expect(out).toContain(`Steps 1 to 8 of ${run}: computing 8 steps from the first weights.`);
    expect(out).toContain('8 of 8 steps equal, in losses and gradient norms, to the bit.');
    expect(out).toContain('4 hashes');
  });

  it('begins with the nearest save, and computes no more than it has to', async () => {
    const { code, out } = await cli(`verify ${run} --steps 6..7`);
    expect(out).toContain(`computing 3 steps from ${saveOf(4)}.`);
    expect(out).toContain('2 of 2 steps equal');
    expect(code).toBe(0);
    const one = await cli(`verify ${run} --steps 5`);
    expect(one.out).toContain(`Step 5 of ${run}: computing 1 step from ${saveOf(4)}.`);
    expect(one.out).toContain('1 of 1 step equal, in losses');
  });

  it('writes nothing into the run, nor do replay and bisect', async () => {
    const state = () =>
      (readdirSync(run, { recursive: true }) as string[]).map((name) => {
        const { mtimeMs, size } = statSync(join(run, name));
        return [name, mtimeMs, size];
      });
    const before = state();
    const lines = [`verify ${run} --steps 8`, `replay ${run} --step 8 --rows`];
    for (const line of [...lines, `bisect ${run} ${kept}`]) {
      expect((await cli(line)).code).toBe(0);
    }
    expect(state()).toEqual(before);
  });

  it('finds the last digit of a loss that has changed', async () => {
    changeLine(6, (line) => {
      const { loss } = JSON.parse(line) as { loss: number };
      const digit = String(loss).endsWith('7') ? '5' : '7';
      return [line.replace(`"loss":${loss}`, `"loss":${String(loss).slice(0, -1)}${digit}`)];
    });
    const { code, out } = await cli(`verify ${run} --steps 5..8`);
    expect(out).toMatch(/Step 6 is not equal: its loss is \S+ in the record, and \S+ here\. 1 of/);
    expect(out).toContain('1 of 4 steps is equal, all before it. Both were computed by cpu ');
    expect(code).toBe(1);
  });

  it('finds a last digit that rounds to the same number', async () => {
    changeLine(6, (line) => [line.replace(/("loss":\d+\.\d+)/, '$10')]);
    const { code, out } = await cli(`verify ${run} --steps 5..8`);
    expect(out).toContain('Step 6 is not equal: its line in metrics.jsonl is not as a run writes');
    expect(code).toBe(1);
  });

  it('finds a step that was left out of the record, and one that was not computed', async () => {
    changeLine(6, () => []);
    const missing = await cli(`verify ${run} --steps 5..8`);
    expect(missing.out).toContain('Step 6 is not equal: it has no line in metrics.jsonl');
    const lines = readFileSync(metrics(), 'utf8').trimEnd().split('\n');
    lines.splice(5, 2, ...[5, 6].map((i) => lines[i]!.replace(/"step":\d/, `"step":${i + 1}`)));
    writeFileSync(metrics(), `${lines.join('\n')}\n`);
    const skipped = await cli(`verify ${run} --steps 5..7`);
    expect(skipped.out).toMatch(/Step 6 is not equal: its (targets|learning rate|loss) /);
    expect([missing.code, skipped.code]).toEqual([1, 1]);
  });

  it('finds a hash that was taken out, and lines that the end of the record lacks', async () => {
    changeLine(6, (line) => [line.replace(/"hash":"\w+",/, '')]);
    const hash = await cli(`verify ${run} --steps 6`);
    expect(hash.out).toContain('Step 6 is not equal: its line has no hash, which --hash-every 2');
    changeLine(8, () => []);
    const end = await cli(`verify ${run}`);
    expect(end.out).toContain('ends with step 7, but there is a save of step 8');
    expect([hash.code, end.code]).toEqual([1, 1]);
  });

  it('finds a flipped bit in a save, and a save of other weights', async () => {
    const [piece] = readdirSync(saveOf(4)).filter((name) => name.endsWith('.pieces'));
    const path = join(saveOf(4), piece!);
    const bytes = readFileSync(path);
    bytes[100]! ^= 1;
    writeFileSync(path, bytes);
    const flipped = await cli(`verify ${run} --steps 6`);
    expect(flipped.out).toContain(`${saveOf(4)} is damaged: load: expected checksum`);
    rmSync(saveOf(4), { recursive: true });
    cpSync(saveOf(8), saveOf(4), { recursive: true });
    const later = await cli(`verify ${run} --steps 6`);
    expect(later.out).toContain(`${saveOf(4)} is not what its name says: it holds the state after`);
    const flags = '--ranks 2 --steps 4 --save-every 4 --hash-every 2 --seed 2';
    await cli(`${tiny} ${flags} --out ${run}/other`);
    rmSync(saveOf(4), { recursive: true });
    cpSync(join(run, 'other/saves/step-000004'), saveOf(4), { recursive: true });
    const other = await cli(`verify ${run} --steps 6`);
    expect(other.out).toContain(`${saveOf(4)} is not the state after step 4: its hash is`);
    expect([flipped.code, later.code, other.code]).toEqual([1, 1, 1]);
  });
});

describe('verify of what has moved on', () => {
  const rows = Array.from({ length: 40 }, (_, i) => JSON.stringify({ text: `row ${i} of all` }));
  let data: string;
  let flags: string;
  beforeEach(() => {
    const folder = newFolder();
    data = join(folder, 'rows.jsonl');
    run = join(folder, 'run');
    writeFileSync(data, `${rows.join('\n')}\n`);
    flags = tiny.replace(/--data \S+/, `--data ${data}`).replace(cache, join(folder, 'cache'));
    flags = `${flags} --strategy single --order sequential --steps 6 --out ${run}`;
  });
  const swapped = () => [rows[1]!, rows[0]!, ...rows.slice(2)].join('\n');

  it('finds the save of another run where the record has no hashes', async () => {
    const saveIn = (directory: string) => join(directory, 'saves/step-000003');
    const others = ['weights', 'seed'].map((name) => join(run, '..', name)) as [string, string];
    await cli(`${flags} --save-every 3 --keep 9`);
    await cli(`${flags.replace(run, others[1])} --save-every 3 --keep 9 --seed 3`);
    writeFileSync(data, swapped());
    await cli(`${flags.replace(run, others[0])} --save-every 3 --keep 9`);
    writeFileSync(data, `${rows.join('\n')}\n`);
    const found: string[] = [];
    for (const other of others) {
      rmSync(saveIn(run), { recursive: true });
      cpSync(saveIn(other), saveIn(run), { recursive: true });
      const { code, out } = await cli(`verify ${run}`);
      expect(code).toBe(1);
      found.push(out);
    }
    expect(found[0]).toContain('Step 3 is not equal: the save of step 3 holds weights or');
    expect(found[1]).toContain('is no save of this run: its --seed is 3, and 1 in the record.');
  });

  it('finds a swapped row of the data, and takes the tokens that it had where they are', async () => {
    expect(await cli(flags)).toMatchObject({ code: 0 });
    writeFileSync(data, swapped());
    const kept = await cli(`verify ${run}`);
    expect(kept.out).toContain(`${data} is not what the run had`);
    expect(kept.out).toContain('6 of 6 steps equal');
    rmSync(join(data, '../cache/tokens'), { recursive: true });
    const lost = await cli(`verify ${run}`);
    expect(lost.err).toContain(`${data} is not what the run had`);
    expect(lost.err).toContain('give the data as it was with --data');
    const moved = `${data}.moved.jsonl`;
    writeFileSync(moved, `${rows.join('\n')}\n`);
    const given = await cli(`verify ${run} --data ${moved}`);
    expect(given.out).toContain('6 of 6 steps equal');
    expect([kept.code, lost.code, given.code]).toEqual([0, 2, 0]);
  });

  it('finds a row of the tokens in the cache that has changed, at the step that takes it', async () => {
    expect(await cli(flags)).toMatchObject({ code: 0 });
    const tokens = join(data, '../cache/tokens');
    const file = join(tokens, readdirSync(tokens)[0]!, 'tokens.bin');
    const bytes = readFileSync(file);
    bytes[5]! ^= 1;
    writeFileSync(file, bytes);
    const { code, out } = await cli(`verify ${run}`);
    expect(out).toMatch(/Step \d is not equal: its loss is/);
    expect(code).toBe(1);
  });

  it('goes from one configuration to the next where the run went on with another', async () => {
    const own =
      `${flags.replace('--steps 6', '')} --schedule constant --save-every 2 --steps`.replace(
        / +/g,
        ' ',
      );
    const first = await cli(`${own} 2`);
    const second = await cli(`${own} 4 --lr 0.02 --resume auto`);
    expect([first.code, second.code]).toEqual([0, 0]);
    rmSync(join(run, 'saves'), { recursive: true });
    const { code, out } = await cli(`verify ${run}`);
    expect(out).toContain('4 of 4 steps equal');
    expect(code).toBe(0);
    vi.stubEnv('TMPDIR', join(run, 'gone')); // where the state between the two would rest
    const untold = await cli(`verify ${run}`);
    vi.unstubAllEnvs();
    expect(untold.err).toMatch(/^error: \S+\/gone\/shardweave-again-\S+ can't be used \(no such/);
    expect(untold.code).toBe(2);
    const events = join(run, 'events.jsonl');
    const text = readFileSync(events, 'utf8');
    writeFileSync(events, text.replace(/^\{"type":"start".*\n/m, ''));
    const lost = await cli(`verify ${run}`);
    expect(lost.err).toContain(
      `${events}: expected a line of type start before step 1, got the first one before step 3. Put`,
    );
    expect(lost.code).toBe(2);
  });

  it('names what is missing', async () => {
    expect(await cli(flags)).toMatchObject({ code: 0 });
    const events = join(run, 'events.jsonl');
    const text = readFileSync(events, 'utf8');
    writeFileSync(events, text.replaceAll(root, `${root}/gone`));
    const gone = await cli(`verify ${run}`);
    expect(gone.err).toContain(`--model: ${root}/gone, which the run began with, is not there.`);
    writeFileSync(events, text.replace(/^\{"type":"start".*\n/m, ''));
    const old = await cli(`verify ${run}`);
    expect(old.err).toContain(
      `${events}: expected a line of type start, which says how the run began, got none. Put it`,
    );
    rmSync(events);
    const lost = await cli(`verify ${run}`);
    expect(lost.err).toContain('which says how the run began, got no such file. Put it back as');
    const range = await cli(`verify ${kept} --steps 7..9`);
    expect(range.err).toContain(`the record of ${kept} has steps 1 to 8`);
    expect([gone.code, old.code, lost.code, range.code]).toEqual([2, 2, 2, 2]);
  });
});
