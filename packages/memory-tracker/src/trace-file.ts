// Writes a memory trace as JSON text and reads it back. Files are the caller's business, because
// this runs in browsers too.

import { MEMORY_TAGS, type MemoryBytes } from '@shardweave/tensor-core';
import { z } from 'zod';
import { TraceFormatError } from './errors.js';
import type { MemoryTrace } from './memory-trace.js';

const FORMAT = 'shardweave-memory-trace';
const VERSION = 1;

const count = z.int().nonnegative();
const liveBytes = z.strictObject(
  Object.fromEntries([...MEMORY_TAGS, 'total'].map((tag) => [tag, count])),
) as unknown as z.ZodType<MemoryBytes>;
const FILE = z.strictObject({
  format: z.literal(FORMAT),
  version: z.literal(VERSION),
  samples: z.array(
    z.strictObject({
      name: z.string(),
      type: z.string(),
      phase: z.enum(['forward', 'recompute', 'backward']),
      pass: count,
      parameterBytes: count,
      liveBytes,
      reservedBytes: count,
      gatheredBytes: count,
      totalGatheredBytes: count,
      activationBytes: count,
      forwardDeltaBytes: z.int(),
    }),
  ),
}) satisfies z.ZodType<MemoryTrace>;

/** The trace as JSON, with one sample per line. */
export function memoryTraceText({ samples }: MemoryTrace): string {
  const lines = samples.map((sample) => JSON.stringify(sample));
  const head = `{"format":"${FORMAT}","version":${VERSION},"samples":[`;
  return `${head}\n${lines.join(',\n')}\n]}\n`;
}

/**
 * The trace in a text that memoryTraceText made.
 * @throws {TraceFormatError} for any other text, naming the first field that is wrong
 */
export function parseMemoryTrace(text: string): MemoryTrace {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw new TraceFormatError('parseMemoryTrace: expected JSON.', { cause });
  }
  const { data, error } = FILE.safeParse(value);
  if (error !== undefined) {
    const [issue] = error.issues;
    const path = issue!.path.join('.') || 'the text';
    throw new TraceFormatError(
      `parseMemoryTrace: expected a memory trace of version ${VERSION}, got another at ${path}: ${issue!.message}.`,
      { cause: error },
    );
  }
  return { samples: data.samples };
}
