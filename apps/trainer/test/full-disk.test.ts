// Disks that are too small, or that fill up while a run is at work. They are real file systems in
// memory.

import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import {
  afterAll,
  beforeAll,
  describe,
  expect,
  it,
  onTestFinished,
  type TestContext,
  vi,
} from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { resolveConfig } from '../src/config/resolve-config.js';
import { DiskFullError, SignalError } from '../src/errors.js';
import { bytesBelow } from '../src/files/disk-room.js';
import { LineFile } from '../src/files/line-file.js';
import { type FilePieces, writeText } from '../src/files/write-file.js';
import { Interrupt } from '../src/interrupt.js';
import { type LeaveModelOptions, leaveModel } from '../src/model/leave-model.js';
import { leftBytes, requireDisk } from '../src/plan/left-bytes.js';
import type { RankEvent } from '../src/rank/events.js';
import { expectKept, twelveSteps } from './support/expect-kept.js';
import { parseFlags } from './support/parse-flags.js';
import { runCli } from './support/run-cli.js';
import { NO_MOUNT, openSmallDisk, type SmallDisk } from './support/small-disk.js';
import { tinyFlags } from './support/tiny-run.js';

const KIB = 1024;
/** A block of these file systems, which is a page. */
const BLOCK = 4 * KIB;

const root = newFolder();
const workingDirectory = process.cwd();
const tiny = tinyFlags(root);
/** A disk with room for everything, where mounting is permitted, and a run on it. */
const wide = openSmallDisk(600 * KIB);
const whole = join(wide?.path ?? root, 'whole');
const WEIGHTS = join(whole, 'model/model.safetensors');
beforeAll(async () => {
  process.chdir(root); // What is written elsewhere is so written here.
  const { code } = await runCli([...twelveSteps(tiny, whole), '--quiet']);
  expect(code).toBe(0);
});
afterAll(() => {
  process.chdir(workingDirectory);
  wide?.[Symbol.dispose]();
});

function smallDisk(context: TestContext, bytes: number): SmallDisk {
  return openSmallDisk(bytes) ?? context.skip(NO_MOUNT);
}

const configOf = (flags: string) =>
  resolveConfig(parseFlags(`${tiny} ${flags}`.split(' '), () => {}));
const numLines = (path: string) => readFileSync(path, 'utf8').trimEnd().split('\n').length;

describe('a run with saves leaves its model, or says why not, with paths and bytes', () => {
  it.for([
    [100, '', 'refused'],
    [220, ' --keep 3', 'elsewhere'], // Three saves and the records leave less than a model's room.
  ] as const)(
    'a disk of %s KiB keeps the model, or the run says why not',
    async ([size, flags, kept], context) => {
      using disk = smallDisk(context, size * KIB);
      expect(await expectKept(disk, tiny + flags, readFileSync(WEIGHTS))).toBe(kept);
    },
  );

  it('a disk of 600 KiB keeps the model with all its saves', async () => {
    expect(readdirSync(join(whole, 'saves')).filter((name) => name.startsWith('step-'))).toEqual([
      'step-000009',
      'step-000012',
    ]);
    expect(bytesBelow(join(whole, 'model'))).toBeGreaterThan(0);
  });
});

/** Leaves files and returns what was told, in order. */
async function leave(
  path: string,
  pieces: () => Iterable<Uint8Array>,
  options: Partial<LeaveModelOptions> & { readonly onEvent?: (event: RankEvent) => void } = {},
) {
  const events: RankEvent[] = [];
  const files: readonly FilePieces[] = [{ name: 'weights', byteLength: 3 * BLOCK, pieces }];
  const never = new AbortController().signal;
  await leaveModel(path, files, {
    ...{ wrapUp: never, signal: never, elsewhere: [root], ...options },
    emit: (event) => {
      events.push(event);
      options.onEvent?.(event);
    },
  });
  return events.map((event) => [event.type, 'text' in event ? event.text : ''] as const);
}

const THREE_BLOCKS = () => [1, 2, 3].map((value) => new Uint8Array(BLOCK).fill(value));

describe('the model of a run', () => {
  it('a run that is stopped without room for its only save says that there is none', async (context) => {
    using disk = smallDisk(context, 600 * KIB);
    const interrupt = new Interrupt({ exit: () => {} });
    const flags = `train ${tiny} --steps 12 --strategy single --out ${join(disk.path, 'run')}`;
    const { code, err } = await runCli(flags.split(' '), {
      interrupt,
      onOut: (text) => {
        if (/^step +3\//.test(text)) {
          disk.fill(0);
          interrupt.ask(new SignalError('SIGINT'));
        }
      },
    });
    expect(code).toBe(1);
    expect(err).toMatch(
      /The last save failed: .* There is no save before it, so the run begins anew/,
    );
  });

  it('asks for no other place where its own takes it, nor minds one that is gone', async () => {
    const gone = vi.spyOn(process, 'cwd').mockImplementation(() => {
      throw new Error('ENOENT: no such file or directory, uv_cwd');
    });
    onTestFinished(() => gone.mockRestore());
    const path = join(root, 'whose-directory-is-gone');
    expect(await leave(path, THREE_BLOCKS, { elsewhere: undefined })).toEqual([]);
    expect(readFileSync(join(path, 'weights'))).toHaveLength(3 * BLOCK);
  });

  it('is written when there is room again, where the disk filled up in the middle of it', async (context) => {
    using disk = smallDisk(context, 64 * KIB);
    const path = join(disk.path, 'model');
    mkdirSync(path);
    writeText(join(path, 'weights'), 'of an earlier command');
    let isFirst = true;
    function* pieces() {
      for (const piece of THREE_BLOCKS()) {
        yield piece;
        if (isFirst) {
          isFirst = false;
          disk.fill(BLOCK);
        }
      }
    }
    const told = await leave(path, pieces, {
      onEvent: () => {
        expect(readFileSync(join(path, 'weights'), 'utf8')).toBe('of an earlier command');
        expect(readdirSync(disk.path).sort()).toEqual(['ballast', 'model']);
        disk.clear();
      },
    });
    expect(told).toEqual([
      [
        'warning',
        `${path} takes 12.0 KiB, where 8.0 KiB are free (no space left on device). Make room: the run waits for it, at most 5 min or until Ctrl-C, and then writes elsewhere.`,
      ],
    ]);
    expect(Buffer.concat(THREE_BLOCKS()).equals(readFileSync(join(path, 'weights')))).toBe(true);
    expect(readdirSync(disk.path)).toEqual(['model']);
  });

  it('is elsewhere, and named, once the wait for room is over; full places are passed over', async (context) => {
    using disk = smallDisk(context, 64 * KIB);
    using full = smallDisk(context, 64 * KIB);
    disk.fill(2 * BLOCK);
    full.fill(0);
    const path = join(disk.path, 'run', 'model');
    const elsewhere = [full.path, join(full.path, 'ballast'), root];
    const told = await leave(path, THREE_BLOCKS, { waitMs: 1, elsewhere });
    expect(told.map(([type]) => type)).toEqual(['warning', 'misplaced']);
    const [, place] = /^(?:.*) It is whole in (\S+) instead: /.exec(told[1]![1])!;
    expect(told[1]![1]).toMatch(`${path} takes 12.0 KiB, where 8.0 KiB are free. It is whole`);
    expect(place).toMatch(/\/run-model-[0-9a-f]{8}$/);
    expect(Buffer.concat(THREE_BLOCKS()).equals(readFileSync(join(place!, 'weights')))).toBe(true);
    expect(existsSync(path)).toBe(false);
    expect(readdirSync(full.path)).toEqual(['ballast']);
  });

  it('goes elsewhere at once where a signal ends the wait, or where room is not what is missing', async (context) => {
    using disk = smallDisk(context, 64 * KIB);
    disk.fill(0);
    const path = join(disk.path, 'model');
    const ctrlC = new AbortController();
    const onEvent = ({ type }: RankEvent) => type === 'warning' && ctrlC.abort();
    const types = async (place: string, options: Parameters<typeof leave>[2]) =>
      (await leave(place, THREE_BLOCKS, options)).map(([type]) => type);
    const wrapUp = ctrlC.signal;
    expect(await types(path, { wrapUp, onEvent })).toEqual(['warning', 'misplaced']);
    expect(await types(path, { wrapUp })).toEqual(['misplaced']);
    disk.fill(32 * KIB);
    expect(await types(join(disk.path, 'ballast/model'), {})).toEqual(['misplaced']);
  });

  it('a model that no place takes is missed in a sentence, which points to the saves that there are', async (context) => {
    using disk = smallDisk(context, 64 * KIB);
    const saves = join(disk.path, 'saves', 'step-000012');
    mkdirSync(saves, { recursive: true });
    disk.fill(0);
    const path = join(disk.path, 'model');
    const wait = { waitMs: 1, elsewhere: [disk.path] };
    const [, [type, text]] = (await leave(path, THREE_BLOCKS, wait)) as [unknown, [string, string]];
    expect(type).toBe('misplaced');
    expect(text).toMatch(`${path} takes 12.0 KiB, where 0 B are free. ${disk.path}/shardweave-`);
    expect(text).toMatch(`-model-`);
    expect(
      text.endsWith(
        ` takes 12.0 KiB, where 0 B are free. The newest save is still there: shardweave convert --from ${disk.path} --out DIR.`,
      ),
    ).toBe(true);
    rmSync(saves, { recursive: true });
    expect((await leave(path, THREE_BLOCKS, wait))[1]![1]).toMatch(/ What was trained is lost\.$/);
  });
});

describe('the records of a run', () => {
  it('wait for room while it trains, and those beside the lines are left out, each by its path and bytes', async (context) => {
    using disk = smallDisk(context, 600 * KIB);
    const out = join(disk.path, 'run');
    const line = `train ${tiny} --steps 20 --log-every 1 --strategy single --out ${out}`;
    const { code, err } = await runCli(line.split(' '), {
      onOut: (text) => {
        if (text.startsWith('step  2/')) {
          disk.fill(0);
        }
        if (text.startsWith('step 19/')) {
          expect(numLines(join(out, 'metrics.jsonl'))).toBeLessThan(18);
          disk.clear();
        }
        if (text.startsWith('\n')) {
          disk.fill(0); // The sample comes between the model and the files of the end.
        }
      },
    });
    expect(code).toBe(0);
    const told = err.trimEnd().split('\n');
    const waiting = told.filter((text) =>
      / its lines are written when there is room\.$/.test(text),
    );
    const names = waiting.map(
      (text) => /\/(\w+)\.jsonl finds no room, where 0 B are free/.exec(text)?.[1],
    );
    expect(names).toContain('metrics');
    expect(new Set(names).size).toBe(names.length);
    expect(numLines(join(out, 'metrics.jsonl'))).toBe(20);
    for (const name of ['summary.json', 'loss.svg', 'report.html']) {
      expect(told).toContainEqual(
        expect.stringMatching(
          new RegExp(`^warning: ${name} is left out: \\S+/${name} takes \\S+ K?i?B, where 0 B are`),
        ),
      );
    }
    const left = readdirSync(out).sort();
    expect(left).toEqual(['config.yaml', 'events.jsonl', 'metrics.jsonl', 'model']);
  });

  it('are whole lines on a full disk, and say how many are lost', async (context) => {
    using disk = smallDisk(context, 64 * KIB);
    const path = join(disk.path, 'lines');
    const file = new LineFile(path);
    const line = 'x'.repeat(1500);
    file.add(line);
    file.add(line);
    disk.fill(0);
    for (let i = 0; i < 3; i++) {
      expect(() => file.add(line)).toThrow(/ENOSPC/);
      expect(readFileSync(path, 'utf8')).toBe(`${line}\n${line}\n`);
    }
    disk.clear();
    file.add(line);
    expect(readFileSync(path, 'utf8')).toBe(`${line}\n`.repeat(6));
    disk.fill(0);
    expect(() => file.add('y'.repeat(BLOCK))).toThrow(/ENOSPC/);
    expect(file.close()).toBe(1);
    expect(readFileSync(path, 'utf8')).toBe(`${line}\n`.repeat(6));
  });
});

describe('a run before its first step', () => {
  it('a run knows its model to the byte, its saves within a fifth, and its records', async () => {
    const left = await leftBytes(await configOf(`--steps 12 --save-every 3 --out ${whole}`));
    expect(left.modelFileBytes.reduce((sum, bytes) => sum + bytes)).toBe(
      bytesBelow(join(whole, 'model')),
    );
    const save = bytesBelow(join(whole, 'saves/step-000012'));
    expect(left.saveBytes / save).toBeGreaterThan(1);
    expect(left.saveBytes / save).toBeLessThan(1.2);
    const records =
      bytesBelow(whole) - bytesBelow(join(whole, 'saves')) - bytesBelow(join(whole, 'model'));
    expect(left.recordBytes / records).toBeGreaterThan(1);
    expect(left.recordBytes / records).toBeLessThan(1.5);
  });

  it.each([
    ['', 0],
    ['--save-every 3', 3],
    ['--save-every 3 --keep 1', 2],
    ['--save-every 10 --keep 5', 2],
    ['--save-every 1m --keep 9', 10],
    ['--save-every 3 --valid-fraction 0.1', 4],
    ['--save-every 12 --valid-fraction 0.1', 2],
    ['--final best --eval-every 3 --valid-fraction 0.1', 2],
  ])('the command counts the saves that there are at once: %s', async (flags, numSaves) => {
    const left = await leftBytes(await configOf(`--steps 12 --out ${whole} ${flags}`.trim()));
    expect(left.numSaves).toBe(numSaves);
  });

  it('is refused on a disk that does not take its model, and warned where only saves are too much', async (context) => {
    using disk = smallDisk(context, 600 * KIB);
    const out = join(disk.path, 'to', 'come');
    const config = await configOf(`--steps 12 --save-every 3 --out ${out}`);
    expect(await requireDisk(config)).toBeUndefined();
    disk.fill(200 * KIB);
    expect(await requireDisk(config)).toMatch(
      /\/to\/come\/saves takes 19\d KiB in up to 3 saves, and 200 KiB are free, of which \S+\/model takes 24\.0 KiB\. Saves will fail, /,
    );
    expect(await requireDisk(await configOf(`--steps 12 --out ${out}`))).toBeUndefined();
    disk.fill(100 * KIB);
    const refused = requireDisk(config);
    await expect(refused).rejects.toThrow(DiskFullError);
    await expect(refused).rejects.toThrow(
      /\/to\/come\/model takes 1\d\d KiB, where 100 KiB are free\. Make room there, or give an --out on another disk\.$/,
    );
    expect(existsSync(join(disk.path, 'to'))).toBe(false);
    // Saves of an earlier command make room for those of this one.
    disk.clear();
    mkdirSync(join(out, 'saves'), { recursive: true });
    writeText(join(out, 'saves', 'step'), 'x'.repeat(150 * KIB));
    disk.fill(200 * KIB);
    expect(await requireDisk(config)).toBeUndefined();
  });
});

describe('a command that leaves a file or a directory', () => {
  it.for([
    ['convert --from', 'model'],
    ['report', 'page.html'],
  ] as const)(
    'leaves nothing on a full disk, and names path and bytes: %s',
    async ([command, name], context) => {
      using disk = smallDisk(context, 64 * KIB);
      disk.fill(BLOCK);
      const out = join(disk.path, name);
      const { code, err } = await runCli([...command.split(' '), whole, '--out', out]);
      const room = 'takes \\S+ KiB, where \\S+ K?i?B are free \\(no space left on device\\)';
      expect([code, err]).toEqual([
        1,
        expect.stringMatching(new RegExp(`^error: ${out} ${room}\\.\n$`)),
      ]);
      expect(readdirSync(disk.path)).toEqual(['ballast']);
    },
  );
});
