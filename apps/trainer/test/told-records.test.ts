// What is told of a run while it runs: TensorBoard's files, and the lines of --on-step.

import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.js';
import { RecordCommand } from '../src/output/record-command.js';
import type { RunRecord } from '../src/output/run-records.js';
import { TensorBoardFile } from '../src/output/tensorboard.js';

const STEP = {
  ...{ type: 'step', step: 1, loss: 3.5, targets: 8, gradNorm: 0.5, lr: 0.25, lossScale: 1 },
  ...{ skipped: false, stepMs: 20, tokensPerSecond: 400, tokens: 8, epoch: 0.125 },
  ...{ peakBytes: 1024, wireBytes: 64, atMs: 1_700_000_000_500 },
} as const satisfies RunRecord;
const RUN = { type: 'run', title: 'x', steps: 9, ranks: 1, atMs: 0 } as const satisfies RunRecord;

/** CRC-32C as its definition has it: the remainder of a division of polynomials over two values. */
function crc32c(bytes: Uint8Array): number {
  const bits = [...bytes].flatMap((byte) => Array.from({ length: 8 }, (_, i) => (byte >> i) & 1));
  const divisor = [...0x11edc6f41n.toString(2)].map(Number);
  const rest = [...bits, ...Array(32).fill(0)];
  for (let i = 0; i < 32; i++) {
    rest[i] ^= 1;
  }
  for (let i = 0; i < bits.length; i++) {
    if (rest[i] === 1) {
      divisor.forEach((bit, k) => {
        rest[i + k] ^= bit;
      });
    }
  }
  const remainder = rest.slice(-32).map((bit) => bit ^ 1);
  return Number.parseInt(remainder.reverse().join(''), 2);
}

const masked = (crc: number) =>
  Number((((BigInt(crc) >> 15n) | (BigInt(crc) << 17n)) + 0xa282ead8n) & 0xffffffffn);

type Fields = Map<number, (number | Uint8Array)[]>;

/** The fields of a message: numbers, and bytes where they are texts or messages. */
function fieldsOf(bytes: Uint8Array): Fields {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const fields: Fields = new Map();
  let at = 0;
  const varint = () => {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = bytes[at++]!;
      value += (byte & 127) * scale;
      if (byte < 128) {
        return value;
      }
    }
  };
  while (at < bytes.byteLength) {
    const tag = varint();
    const fixed = (length: number) => {
      at += length;
      return at - length;
    };
    const read = {
      0: varint,
      1: () => view.getFloat64(fixed(8), true),
      2: () => {
        const length = varint();
        const start = fixed(length);
        return bytes.subarray(start, start + length);
      },
      5: () => view.getFloat32(fixed(4), true),
    }[tag % 8]!;
    const field = Math.floor(tag / 8);
    fields.set(field, [...(fields.get(field) ?? []), read()]);
  }
  return fields;
}

const textOf = (value: unknown) => new TextDecoder().decode(value as Uint8Array);
const first = (fields: Fields, field: number) => fields.get(field)?.[0];
const inside = (fields: Fields, field: number) => fieldsOf(first(fields, field) as Uint8Array);

/** The events of a directory's only file, whose checksums are right. */
function eventsIn(directory: string): Fields[] {
  const [name, ...others] = readdirSync(directory);
  expect(others).toEqual([]);
  expect(name).toMatch(/^events\.out\.tfevents\.1700000000\./);
  const bytes = readFileSync(join(directory, name!));
  const events: Fields[] = [];
  for (let at = 0; at < bytes.byteLength; ) {
    const length = Number(bytes.readBigUInt64LE(at));
    const data = bytes.subarray(at + 12, at + 12 + length);
    expect(bytes.readUInt32LE(at + 8)).toBe(masked(crc32c(bytes.subarray(at, at + 8))));
    expect(bytes.readUInt32LE(at + 12 + length)).toBe(masked(crc32c(data)));
    events.push(fieldsOf(data));
    at += 16 + length;
  }
  return events;
}

describe("TensorBoard's file", () => {
  it('has checksums and fields as they are defined', () => {
    expect(crc32c(new TextEncoder().encode('123456789'))).toBe(0xe3069283); // RFC 3720's vector
    const folder = newFolder();
    const board = new TensorBoardFile({ out: folder, onWarning: expect.unreachable });
    board.onRecord(RUN);
    board.onRecord(STEP);
    board.onRecord({ type: 'sample', step: 1, prompt: 'Once', text: ' more' });
    board.onRecord({ ...STEP, step: 300, loss: null, validLoss: 3, figures: { accuracy: 0.75 } });
    board.onRecord({ ...RUN, atMs: 1 }); // a restart goes back to step 2
    board.onRecord({ ...STEP, step: 2 });
    board[Symbol.dispose]();
    const events = eventsIn(folder);
    const steps = events.map((event) => first(event, 2));
    expect(steps).toEqual([0, 1, 1, 1, 300, 2, 2]);
    expect(events.map((event) => first(event, 1))[2]).toBe(1_700_000_000.5);
    expect(textOf(first(events[0]!, 3))).toBe('brain.Event:2');
    // Readers drop what was told of this step and later ones before.
    expect([1, 5].map((i) => first(inside(events[i]!, 7), 1))).toEqual([1, 1]);
    const scalars = (event: Fields) =>
      Object.fromEntries(
        (inside(event, 5).get(1) as Uint8Array[])
          .map(fieldsOf)
          .map((value) => [textOf(first(value, 1)), first(value, 2)]),
      );
    expect(scalars(events[2]!)).toEqual({
      ...{ 'loss/train': 3.5, 'train/learning_rate': 0.25, 'train/gradient_norm': 0.5 },
      ...{ 'train/loss_scale': 1, 'train/epoch': 0.125, 'train/tokens': 8 },
      ...{ 'speed/tokens_per_second': 400, 'speed/step_ms': 20 },
      ...{ 'memory/peak_bytes': 1024, 'communication/sent_bytes': 64 },
    });
    expect(scalars(events[4]!)).toMatchObject({ 'loss/valid': 3, 'valid/accuracy': 0.75 });
    expect(scalars(events[4]!)).not.toHaveProperty('loss/train');
    const text = fieldsOf((inside(events[3]!, 5).get(1) as Uint8Array[])[0]!);
    expect(textOf(first(text, 1))).toBe('sample');
    expect(textOf(first(inside(text, 8), 8))).toBe('Once more');
    expect(textOf(first(inside(inside(text, 9), 1), 1))).toBe('text');
  });

  it('is given up with a sentence where it cannot be written', () => {
    const warnings: string[] = [];
    const board = new TensorBoardFile({
      out: '/proc/self',
      onWarning: (text) => warnings.push(text),
    });
    board.onRecord(STEP);
    board.onRecord(STEP);
    expect(warnings).toEqual([
      expect.stringMatching(/^--tensorboard: .* The run goes on without\.$/),
    ]);
  });
});

describe('the command of --on-step', () => {
  async function told(command: string, records: readonly RunRecord[], endMs?: number) {
    const warnings: string[] = [];
    const onWarning = (text: string) => void warnings.push(text);
    await using recipient = new RecordCommand({
      ...{ command, env: process.env, onWarning },
      ...(endMs !== undefined && { endMs }),
    });
    for (const record of records) {
      recipient.onRecord(record);
    }
    await recipient[Symbol.asyncDispose]();
    return warnings;
  }

  it('gets each record as a line of JSON, and has its time at the end', async () => {
    const folder = newFolder();
    const file = join(folder, 'lines');
    expect(await told(`sleep 0.1; cat > ${file}; echo end >> ${file}`, [RUN, STEP])).toEqual([]);
    const lines = readFileSync(file, 'utf8').trimEnd().split('\n');
    expect(lines.pop()).toBe('end');
    expect(lines.map((line) => JSON.parse(line))).toEqual([RUN, STEP]);
  });

  it.each([
    ['exit 3', 'ended with exit code 3'],
    ['no-such-command', 'ended with exit code 127'],
    ['kill -9 $$', 'ended with SIGKILL'],
    ['sleep 60', 'has not ended 0.2 s after the run, and is ended now'],
  ])('ends nothing: %s', async (command, what) => {
    const warnings = await told(command, [RUN, STEP], 200);
    expect(warnings).toEqual([`--on-step: the command ${what}. The run needs it for nothing.`]);
  });

  it('gets no more where it does not read', async () => {
    const long = { type: 'warning', text: 'x'.repeat(2 ** 20) } as const;
    const warnings = await told('sleep 60', Array(12).fill(long), 100);
    expect(warnings).toEqual([expect.stringContaining('reads too slowly, and gets no more')]);
  });
});
