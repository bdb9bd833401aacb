// What computes products is decided once: by the machine, by the hosts, and by the steps before.

import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { StateError } from '@shardweave/tensor-core';
import { findNativeProducts } from '@shardweave/tensor-core/cpu';
import { describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { resolveProducts } from '../src/launch/resolve-products.js';
import { runCli } from './support/run-cli.js';
import { tinyFlags } from './support/tiny-run.js';

const has = (name: string) => async () => ({ name });
const hasOne = has('OpenBLAS 0.3.21 Haswell');
const hasNone = () =>
  Promise.reject(new StateError('cpu: native products: expected one, got none. Install it.'));
const here = await findNativeProducts().catch(() => undefined);

const ASKED = { products: 'auto', device: ['cpu'], transport: 'memory' } as const;
const decide = (asked: object, machine: Parameters<typeof resolveProducts>[1]) =>
  resolveProducts({ resume: undefined, out: undefined, ...ASKED, ...asked }, machine);

describe('products are', () => {
  it("a library's where the machine has one, and else wasm's", async () => {
    expect(await decide({}, { find: hasOne })).toBe('native');
    expect(await decide({ products: 'wasm' }, { find: hasOne })).toBe('wasm');
    expect(await decide({ device: ['webgpu', 'webgpu:1'] }, { find: hasOne })).toBe('wasm');
    expect(await decide({}, { find: hasNone })).toBe('wasm');
  });

  it('refused where a library is asked for that is not there', async () => {
    const refused = {
      name: 'UsageError',
      message: '--products native: expected one, got none. Install it.',
    };
    const asked = decide({ products: 'native' }, { find: hasNone });
    await expect(asked).rejects.toMatchObject(refused);
  });

  it("wasm's over several hosts, whose libraries may differ", async () => {
    const ranks = (local: string) => ({
      ...{ OMPI_COMM_WORLD_RANK: '0', OMPI_COMM_WORLD_SIZE: '4' },
      ...{ OMPI_COMM_WORLD_LOCAL_RANK: '0', OMPI_COMM_WORLD_LOCAL_SIZE: local },
    });
    const on = (env: NodeJS.ProcessEnv) => ({ env, find: hasOne });
    expect(await decide({ transport: 'mpi' }, on(ranks('2')))).toBe('wasm');
    expect(await decide({ transport: 'mpi' }, on(ranks('4')))).toBe('native');
    expect(await decide({}, on(ranks('2')))).toBe('native');
  });
});

describe('a run that goes on', () => {
  /** Trains a tiny model with a save after each step. */
  async function train(root: string, flags: string) {
    const command = `train ${tinyFlags(root)} --strategy single --save-every 1 --out ${root}/run`;
    const { code, out, err } = await runCli(`${command} ${flags}`.split(' '));
    const file = join(root, 'run/config.yaml');
    const config = existsSync(file) ? parse(readFileSync(file, 'utf8')) : {};
    return { code, text: `${out}${err}`, config };
  }

  it('keeps to wasm where the steps before were computed so', async () => {
    const root = newFolder();
    const { code, text, config } = await train(root, '--steps 1 --products wasm');
    expect([code, config.products], text).toEqual([0, 'wasm']);
    const out = join(root, 'run');
    expect(await decide({ resume: 'auto', out }, { find: hasOne })).toBe('wasm');
    expect(await decide({ resume: out }, { find: hasOne })).toBe('wasm');
    const further = await train(root, '--steps 2 --resume auto');
    expect([further.code, further.config.products], further.text).toEqual([0, 'wasm']);
    expect(further.text).not.toContain('bits ');
  });

  it.skipIf(here === undefined)(
    `keeps to the library of the steps before${here === undefined ? ' (none is here)' : ''}`,
    async () => {
      const root = newFolder();
      const { code, text, config } = await train(root, '--steps 1');
      expect([code, config.products], text).toEqual([0, 'auto']);
      expect(text).toContain(`bits    of this machine: products by ${here!.name}; `);
      const further = await train(root, '--steps 2 --resume auto');
      expect([further.code, further.config.products], further.text).toEqual([0, 'auto']);

      const goesOn = { resume: 'auto', out: join(root, 'run') };
      const other = decide(goesOn, { find: has('OpenBLAS 9 Other') });
      await expect(other).rejects.toThrow(
        `--resume: the steps before have products by ${here!.name}, and this machine has OpenBLAS 9 Other. Install that one, or go on with other bits by --products native.`,
      );
      await expect(decide(goesOn, { find: hasNone })).rejects.toThrow(
        /, which can't be had here \(cpu: .*got none\. Install it\)\. To go on with other bits use --products wasm\.$/,
      );
      const typed = await train(root, '--steps 3 --resume auto --products wasm');
      expect([typed.code, typed.config.products], typed.text).toEqual([0, 'wasm']);
      expect(typed.text).toContain('The steps before were computed by cpu ');
    },
  );
});
