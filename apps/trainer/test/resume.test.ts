// Runs end and are resumed. A save holds all that a run needs, so losses and weights are those of a
// run that never stopped.

import {
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statSync,
  truncateSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { openSave } from '@shardweave/checkpoint';
import { pieceDirectory } from '@shardweave/checkpoint/node';
import { beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { UsageError } from '../src/errors.js';
import { worstRatio } from './support/run-flags.js';
import { lossesOf, runLine, tinyFlags, told } from './support/tiny-run.js';

/** Runs that are killed go on in further ways: see killed-runs.test.ts. */
const isLong = process.env.SHARDWEAVE_LONG === '1';
const root = newFolder();
let directory: string;
const tiny = tinyFlags(root);
beforeEach(() => {
  directory = newFolder();
});

const run = (flags: string, options: Parameters<typeof runLine>[1] = {}) =>
  runLine(`${tiny} ${flags}`, options);
const savesIn = (out: string) => readdirSync(join(out, 'saves')).sort();

describe('a run that ended goes on bit for bit', () => {
  it.each([
    '--strategy fsdp --ranks 3',
    '--strategy ddp --ranks 2 --precision fp16',
    ...(isLong
      ? [
          '--strategy single --precision bf16',
          '--strategy offload --slices 2',
          '--strategy single',
          '--strategy fsdp --ranks 2 --cpu-offload',
          '--strategy ddp --ranks 2',
          '--strategy fsdp --ranks 2 --precision fp16',
          '--strategy offload --slices 2 --precision bf16',
        ]
      : []),
  ])('%s', async (way) => {
    const [whole, broken] = [join(directory, 'whole'), join(directory, 'broken')];
    const flags = `${way} --steps 6`;
    const unbroken = await run(`${flags} --out ${whole}`);
    const first = await run(`${flags} --out ${broken} --save-every 2`, { numSteps: 5 });
    expect(told(first)).toEqual(told(unbroken).slice(0, 5));
    const again = await run(`${flags} --out ${broken} --resume auto --save-every 2`);
    const from = again.resumed!.step;
    expect([2, 4]).toContain(from); // The second save may have been under way.
    expect(again.resumed!.notes).toEqual([]);
    expect(told(again)).toEqual(told(unbroken).slice(from));
    expect(savesIn(broken)).toEqual(['step-000004', 'step-000006']);
    const weights = (out: string) => readFileSync(join(out, 'model/model.safetensors'));
    expect(weights(broken).equals(weights(whole))).toBe(true);
  });

  /** What rests on disk rests there by the same code in both. */
  const resting = ['--strategy fsdp --ranks 2', ...(isLong ? ['--strategy offload'] : [])];
  it.each(resting)(
    '%s: in the place of its own state on disk, and of no other run',
    async (way) => {
      const [rest, out] = [join(directory, 'rest'), join(directory, 'run')];
      const flags = `${way} --steps 4 --offload-dir ${rest} --save-every 100 --out`;
      const first = await stoppedAfter(2, `${flags} ${out}`);
      const other = run(`${flags} ${directory}/other --resume auto`);
      await expect(other).rejects.toThrow(/holds the state of an earlier run/);
      const again = await run(`${flags} ${out} --resume auto`);
      const unbroken = await run(`${way} --steps 4`);
      expect([...told(first), ...told(again)]).toEqual(told(unbroken));
    },
  );

  it.each(resting)(
    '%s: from a save that has the files of its state on disk, and later steps have not gone over them',
    async (way) => {
      const [rest, out] = [join(directory, 'rest'), join(directory, 'run')];
      const flags = `${way} --steps 6 --offload-dir`;
      const unbroken = await run(`${flags} ${rest} --save-every 1 --keep 9 --out ${out}`);
      expect(unbroken.saves.map(({ step }) => step)).toEqual([1, 2, 3, 4, 5, 6]);
      const filesOf = (step: number) => {
        const path = join(out, 'saves', `step-00000${step}`);
        return readdirSync(path)
          .filter((name) => name.endsWith('.pieces'))
          .map((name) => ({ name, ...statSync(join(path, name)) }));
      };
      for (const { name, size, nlink } of filesOf(6)) {
        // A save writes nothing of such a model again. It links the files in which the state rests.
        expect([name, size > 0, nlink]).toEqual([name, name.includes('-file-'), size > 0 ? 2 : 1]);
      }
      const inodes = [1, 2, 3, 4, 5, 6].flatMap((step) => filesOf(step).map(({ ino }) => ino));
      expect(new Set(inodes).size).toBe(inodes.length);
      const again = await run(
        `${flags} ${directory}/other --out ${directory}/again --resume ${out}/saves/step-000002`,
      );
      expect(told(again)).toEqual(told(unbroken).slice(2));
      const pins = readdirSync(rest, { recursive: true }).filter((name) =>
        `${name}`.includes('pin'),
      );
      expect(pins).toEqual([]);
    },
  );

  it('the loss scale is where it was, behind overflows', async () => {
    const flags = '--strategy fsdp --ranks 2 --precision fp16 --steps 6 --lr 3';
    const unbroken = await run(flags);
    expect(unbroken.steps.slice(0, 3).map(({ skipped }) => skipped)).toEqual([false, true, true]);
    const out = join(directory, 'run');
    await stoppedAfter(3, `${flags} --out ${out} --save-every 100`);
    const again = await run(`${flags} --out ${out} --resume auto`);
    expect(told(again)).toEqual(told(unbroken).slice(3));
  });
});

describe('a save', () => {
  let out: string;
  let unbroken: Awaited<ReturnType<typeof run>>;
  const FLAGS = '--strategy fsdp --ranks 2 --steps 8 --schedule constant';
  beforeAll(async () => {
    out = join(root, 'saved');
    unbroken = await run(`${FLAGS} --out ${out} --save-every 2 --keep 3`);
  });
  /** Makes a copy that a test may damage. */
  const copy = () => {
    const path = join(directory, 'run');
    cpSync(out, path, { recursive: true });
    return path;
  };
  const resume = (path: string, flags = FLAGS) => run(`${flags} --out ${path} --resume auto`);

  it('is made as often as asked and behind the last step; the newest are kept', () => {
    expect(unbroken.saves.map(({ step }) => step)).toEqual([2, 4, 6, 8]);
    expect(savesIn(out)).toEqual(['step-000004', 'step-000006', 'step-000008']);
    expect(unbroken.warnings).toEqual([]);
  });

  it('says what the run needs to go on', async () => {
    const path = join(out, 'saves/step-000006');
    const { extra, optimizer } = await openSave(pieceDirectory(path));
    expect(extra.run).toMatchObject({ step: 6, updates: 6, config: { batch: 12, ranks: 2 } });
    expect(new Set(Object.values(optimizer!.steps))).toEqual(new Set([6]));
    expect(readdirSync(path)).toHaveLength(3); // There is one file for each rank, and the index.
  });

  it.each<[string, (path: string) => void]>([
    ['cut off', (path) => truncateSync(path, 100)],
    ['damaged', (path) => flip(path)],
    ['missing', (path) => unlinkSync(path)],
  ])('one file of which is %s is passed over for the one before it', async (_, spoil) => {
    const path = copy();
    const newest = join(path, 'saves/step-000008');
    const file = readdirSync(newest).find((name) => name.includes('rank-1'))!;
    spoil(join(newest, file));
    const again = await resume(path);
    expect(again.resumed!.path).toBe(join(path, 'saves/step-000006'));
    expect(again.resumed!.notes.join()).toMatch(/step-000008 can't be used: .*step-000008\.aside/s);
    expect(told(again)).toEqual(told(unbroken).slice(6));
    expect(savesIn(path)).toContain('step-000008.aside');
  });

  it('none of which is whole ends the run, and deletes nothing', async () => {
    const path = copy();
    for (const save of savesIn(path)) {
      truncateSync(join(path, 'saves', save, 'index.json'), 50);
    }
    await expect(resume(path)).rejects.toThrow(/none of 3 saves is whole.*step-000008/);
    expect(savesIn(path)).toEqual(savesIn(out));
  });

  it('a save that was not finished is none, and is removed', async () => {
    const path = copy();
    mkdirSync(join(path, 'saves/step-000010.part'));
    const again = await run(`${FLAGS} --steps 9 --out ${path} --resume auto --save-every 5`);
    expect(again.resumed!.step).toBe(8);
    expect(savesIn(path)).toEqual(['step-000008', 'step-000009']);
  });

  it.each([
    ['--batch 6', /another --batch: 12, got 6\. Give --batch as it was/],
    ['--seq 4', /another --seq: 8, got 4/],
    ['--seed 2', /another --seed: 1, got 2/],
    ['--order sequential', /another --order: shuffle, got sequential/],
    ['--dropout 0.5', /another model \(embd_pdrop\): 0\.1, got 0\.5/],
    ['--model nano', /another model \(\w+\): \d+, got \d+/],
    ['--lora-rank 2', /another --lora-rank: none, got 2/],
    ['--valid-fraction 0.1', /another --valid-fraction: none, got 0\.1/],
    ['--data DATA', /another data: .*text\.txt \(\w+\), got .*other\.txt/],
  ])('a save of a run with other rows or another model is refused: %s', async (flag, message) => {
    const data = join(root, 'other.txt');
    writeFileSync(data, 'another text, which is long enough for rows. '.repeat(20));
    const refused = resume(out, `${FLAGS} ${flag.replace('DATA', data)}`);
    await expect(refused).rejects.toThrow(UsageError);
    await expect(refused).rejects.toThrow(message);
  });

  // In checkpoint-pairs.test.ts each strategy loads what each one saved.
  it.each([
    '--strategy ddp --ranks 3',
    '--strategy fsdp --ranks 4 --grad-accum 2',
    ...(isLong ? ['--strategy single', '--strategy offload'] : []),
  ])('goes on as %s, and says so', async (way) => {
    const path = join(out, 'saves/step-000004');
    const again = await run(`${way} --steps 8 --schedule constant --resume ${path}`);
    expect(again.resumed!.notes.join()).toMatch(
      /^Other than in the save: --strategy \w+ \(was|--ranks 4 \(was 2\)/,
    );
    expect(worstRatio(lossesOf(again), lossesOf(unbroken).slice(4))).toBeLessThan(2e-6);
  });

  it('goes on with rates and decays of its new flags', async () => {
    const again = await resume(copy(), `${FLAGS} --steps 10 --lr 0.125`);
    expect(again.resumed!.notes.join()).toMatch(/--steps 10 \(was 8\), --lr 0\.125 \(was/);
    expect(again.steps.map(({ lr }) => lr)).toEqual([0.125, 0.125]);
    const chosen = join(out, 'saves/step-000004');
    const decayed = await run(`${FLAGS} --resume ${chosen} --weight-decay 20`);
    const [first, second] = lossesOf(unbroken).slice(4);
    expect(lossesOf(decayed)[0]).toBe(first);
    expect(Math.abs(lossesOf(decayed)[1]! / second! - 1)).toBeGreaterThan(1e-4);
  });

  it('a save that is chosen leaves the newer ones under other names', async () => {
    const path = copy();
    const chosen = join(path, 'saves/step-000004');
    const flags = `${FLAGS} --steps 5 --save-every 2 --keep 9 --out ${path} --resume ${chosen}`;
    const again = await run(flags);
    expect(again.resumed!.step).toBe(4);
    const expected = ['4', '5', '6.aside', '8.aside'].map((name) => `step-00000${name}`);
    expect(savesIn(path)).toEqual(expected);
  });

  it('a run without a save yet starts anew, or is refused where a save was named', async () => {
    const again = await run(`${FLAGS} --steps 1 --out ${directory}/new --resume auto`);
    expect(again.resumed).toEqual({ step: 0, path: undefined, notes: [] });
    await expect(run(`${FLAGS} --resume ${directory}/nowhere`)).rejects.toThrow(/holds no save/);
  });

  it('the best by what is evaluated is kept, and a better one is made at once', async () => {
    const flags =
      '--strategy single --steps 10 --valid-fraction 0.2 --eval-every 2 --lr 2 --warmup 9 --schedule constant';
    const path = join(directory, 'best');
    const { steps, saves } = await run(`${flags} --save-every 5 --keep 1 --out ${path}`);
    const valid = steps.flatMap(({ step, validLoss }) => (validLoss ? [{ step, validLoss }] : []));
    const best = valid.reduce((a, b) => (b.validLoss < a.validLoss ? b : a));
    expect(best.step).toBeLessThan(10);
    const kept = savesIn(path).map((name) => Number(name.slice(-6)));
    expect(kept).toEqual([...new Set([best.step, 10])].sort((a, b) => a - b));
    const losses = valid.map(({ validLoss }) => validLoss);
    const better = valid.filter(({ validLoss }, i) => validLoss < Math.min(...losses.slice(0, i)));
    const due = new Set([...better.map(({ step }) => step), 5, 10]);
    expect(saves.map(({ step }) => step)).toEqual([...due].sort((a, b) => a - b));
  });
});

describe('a run that is asked to stop', () => {
  it.each(['--strategy fsdp --ranks 2', ...(isLong ? ['--strategy offload'] : [])])(
    '%s: ends behind the step with a save, and goes on from there',
    async (way) => {
      const flags = `${way} --steps 6 --out ${directory}/run --save-every 100`;
      const first = await stoppedAfter(2, flags);
      expect(first.steps.map(({ step }) => step)).toEqual([1, 2]);
      expect(first.stopped).toBe(join(directory, 'run/saves/step-000002'));
      expect(existsSync(join(directory, 'run/model'))).toBe(false);
      const again = await run(`${flags} --resume auto`);
      const unbroken = await run(`${way} --steps 6`);
      expect([...told(first), ...told(again)]).toEqual(told(unbroken));
    },
  );
});

/** Runs until the event of step `last` and then asks the run to stop. */
function stoppedAfter(last: number, flags: string) {
  const wrapUp = new AbortController();
  return run(flags, {
    wrapUp: wrapUp.signal,
    onEvent: (event) => event.type === 'step' && event.metrics.step === last && wrapUp.abort(),
  });
}

function flip(path: string): void {
  const bytes = readFileSync(path);
  bytes[bytes.byteLength >> 1]! ^= 4;
  writeFileSync(path, bytes);
}

describe('flags of saves', () => {
  it.each([
    ['--save-every 5', /--save-every is for --out, which is not given/],
    ['--resume auto', /--resume auto looks for saves under --out, which is not given/],
    ['--out x --keep 2', /--keep is for --save-every, which is not given/],
    ['--out x --max-restarts 2', /--max-restarts is for --save-every, which is not given/],
    ['--out x --save-every 0', /--save-every: expected a number of steps such as 100, or of min/],
    ['--out x --save-every 5h', /--save-every: expected/],
    [
      '--out x --save-every 5 --max-restarts 1 --transport mpi',
      /--max-restarts: .*mpi|ends them all/,
    ],
  ])('%s is refused', async (flags, message) => {
    await expect(run(flags)).rejects.toThrow(UsageError);
    await expect(run(flags)).rejects.toThrow(message);
  });
});
