// --tensorboard: the records of a run as TensorBoard's event files, beside metrics.jsonl. Such a
// file is a sequence of messages of Protocol Buffers, each with its length and two checksums.

import { closeSync, openSync, writeSync } from 'node:fs';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { ProtoMessage } from '@shardweave/onnx/proto-message';
import { whyNotWritten } from '../files/disk-room.js';
import type { RunListener } from './run-recorder.js';
import type { RunRecord, StepLine } from './run-records.js';

/** The fields of tensorflow.Event, tensorflow.Summary.Value and what they have in them. */
const EVENT = { wallTime: 1, step: 2, fileVersion: 3, summary: 5, sessionLog: 7 } as const;
const VALUE = { tag: 1, simpleValue: 2, tensor: 8, metadata: 9 } as const;
const TENSOR = { dtype: 1, shape: 2, stringValue: 8 } as const;
const DT_STRING = 7;
/** With it, readers drop the steps that a run which goes on repeats. */
const FILE_VERSION = 'brain.Event:2';
const SESSION_START = 1;

export interface TensorBoardOptions {
  /** The directory of the run. */
  readonly out: string;
  /** Called with what a person should know; the run goes on. */
  readonly onWarning: (text: string) => void;
}

export class TensorBoardFile implements RunListener, Disposable {
  readonly #options: TensorBoardOptions;
  #file: number | undefined;
  #path = '';
  /** Whether the file knows at which step this start of the run begins. */
  #isBegun = false;
  #hasFailed = false;

  constructor(options: TensorBoardOptions) {
    this.#options = options;
  }

  readonly onRecord = (record: RunRecord): void => {
    if (this.#hasFailed) {
      return;
    }
    try {
      this.#add(record);
    } catch (error) {
      this.#hasFailed = true;
      const why = whyNotWritten(error, this.#path);
      this.#options.onWarning(`--tensorboard: ${why} The run goes on without.`);
    }
  };

  [Symbol.dispose](): void {
    if (this.#file !== undefined) {
      closeSync(this.#file);
      this.#file = undefined;
    }
  }

  #add(record: RunRecord): void {
    switch (record.type) {
      case 'run':
        this.#isBegun = false;
        return;
      case 'step': {
        const { step, atMs } = record;
        if (!this.#isBegun) {
          this.#begin(step, atMs);
        }
        const values = scalarsOf(record).map(([tag, value]) => scalar(tag, value));
        this.#write({ step, atMs }, (event) => event.nested(EVENT.summary, repeated(values)));
        return;
      }
      case 'sample': {
        const { step, prompt, text } = record;
        if (!this.#isBegun) {
          this.#begin(step, Date.now());
        }
        const values = [textValue('sample', `${prompt}${text}`)];
        const at = { step, atMs: Date.now() };
        this.#write(at, (event) => event.nested(EVENT.summary, repeated(values)));
      }
    }
  }

  #begin(step: number, atMs: number): void {
    this.#isBegun = true;
    if (this.#file === undefined) {
      const name = `events.out.tfevents.${Math.floor(atMs / 1000)}.${hostname()}.${process.pid}`;
      this.#path = join(this.#options.out, name);
      this.#file = openSync(this.#path, 'a');
      this.#write({ step: 0, atMs }, (event) => event.text(EVENT.fileVersion, FILE_VERSION));
    }
    const log = new ProtoMessage().integer(1, SESSION_START);
    this.#write({ step, atMs }, (event) => event.nested(EVENT.sessionLog, log));
  }

  #write(
    { step, atMs }: Pick<StepLine, 'step' | 'atMs'>,
    add: (event: ProtoMessage) => ProtoMessage,
  ): void {
    const event = new ProtoMessage().double(EVENT.wallTime, atMs / 1000).integer(EVENT.step, step);
    const record = framed(add(event).bytes());
    for (let done = 0; done < record.byteLength; ) {
      done += writeSync(this.#file!, record, done);
    }
  }
}

/** The numbers of a step, by names whose parts are groups in TensorBoard's page. */
function scalarsOf(line: StepLine): [tag: string, value: number][] {
  const { loss, validLoss, gradNorm, figures = {}, batchFigures = {}, groups = {} } = line;
  const all: (readonly [string, number | null | undefined])[] = [
    ['loss/train', loss],
    ['loss/valid', validLoss],
    ['train/learning_rate', line.lr],
    ['train/gradient_norm', gradNorm],
    ['train/loss_scale', line.lossScale],
    ['train/epoch', line.epoch],
    ['train/tokens', line.tokens],
    ['speed/tokens_per_second', line.tokensPerSecond],
    ['speed/step_ms', line.stepMs],
    ['memory/peak_bytes', line.peakBytes],
    ['communication/sent_bytes', line.wireBytes],
    ...Object.entries(batchFigures).map(([name, value]) => [`train/${name}`, value] as const),
    ...Object.entries(figures).map(([name, value]) => [`valid/${name}`, value] as const),
    ...Object.entries(groups).flatMap(([name, { gradNorm: norm, updateRatio }]) => [
      [`layers/${name}`, norm] as const,
      [`updates/${name}`, updateRatio] as const,
    ]),
  ];
  return all.filter((entry): entry is [string, number] => typeof entry[1] === 'number');
}

const scalar = (tag: string, value: number) =>
  new ProtoMessage().text(VALUE.tag, tag).float(VALUE.simpleValue, value);

/** A text for the plug-in of that name. */
function textValue(tag: string, value: string): ProtoMessage {
  const plugin = new ProtoMessage().text(1, 'text');
  const shape = new ProtoMessage().nested(2, new ProtoMessage().integer(1, 1));
  const tensor = new ProtoMessage()
    .integer(TENSOR.dtype, DT_STRING)
    .nested(TENSOR.shape, shape)
    .text(TENSOR.stringValue, value);
  return new ProtoMessage()
    .text(VALUE.tag, tag)
    .nested(VALUE.tensor, tensor)
    .nested(VALUE.metadata, new ProtoMessage().nested(1, plugin));
}

/** A Summary of these values. */
const repeated = (values: readonly ProtoMessage[]) =>
  values.reduce((summary, value) => summary.nested(1, value), new ProtoMessage());

/** A record: its length in eight bytes, their checksum, the data, and its checksum. */
function framed(data: Uint8Array): Uint8Array {
  const record = new Uint8Array(8 + 4 + data.byteLength + 4);
  const view = new DataView(record.buffer);
  view.setBigUint64(0, BigInt(data.byteLength), true);
  view.setUint32(8, maskedCrc32c(record.subarray(0, 8)), true);
  record.set(data, 12);
  view.setUint32(12 + data.byteLength, maskedCrc32c(data), true);
  return record;
}

/** The checksum as TFRecord has it, so that data with checksums in it does not check itself. */
function maskedCrc32c(bytes: Uint8Array): number {
  const crc = crc32c(bytes);
  return (((crc >>> 15) | (crc << 17)) + 0xa282ead8) >>> 0;
}

/** CRC-32C (Castagnoli), a bit at a time: a record has some hundred bytes. */
function crc32c(bytes: Uint8Array): number {
  let crc = ~0;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) {
      crc = (crc >>> 1) ^ (-(crc & 1) & 0x82f63b78);
    }
  }
  return ~crc >>> 0;
}
