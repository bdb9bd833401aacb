// What a job whose ranks change tells those who know no more than its address: its flags. They read
// data and model by themselves, so of data only the names travel.

import { deflateRawSync, inflateRawSync } from 'node:zlib';
import { UsageError } from '../errors.js';
import type { PreparedRun, RunConfig } from '../run-config.js';

/** The most bytes that serveElastic tells. */
const MOST_BYTES = 32 * 1024;

/** @throws {UsageError} where the flags name more than can be told */
export function aboutOf({ tokens: _, ...config }: PreparedRun): string {
  const about = deflateRawSync(JSON.stringify(config)).toString('base64');
  if (about.length > MOST_BYTES) {
    const { data = '', valid = '' } = config;
    const flag = data.length < valid.length ? '--valid' : '--data';
    throw new UsageError(
      `${flag}: the flags of a job with --elastic travel to those who join, in at most ${MOST_BYTES} bytes, and take ${about.length} here. Put the files into a folder, and name that.`,
    );
  }
  return about;
}

/** @throws {UsageError} for what another version has told */
export function readAbout(about: string): RunConfig {
  try {
    return JSON.parse(inflateRawSync(Buffer.from(about, 'base64')).toString()) as RunConfig;
  } catch (cause) {
    throw new UsageError(
      'join: what the job tells of itself can not be read. Install the version that it has.',
      { cause },
    );
  }
}
