// Kernels are text made by nested templates. Head comments name a kernel and show what comes out of
// it; here each excerpt is found in the text of that kernel.

import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { kernelCases } from '@shardweave/tensor-core/testing';
import { createWebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { openNodeGpu } from '@shardweave/tensor-core/webgpu-node';
import { expect, it } from 'vitest';
import { hardwareKernels } from '../../bench/kernels/hardware-kernels.mjs';
import { ROOT } from './workspace.ts';

const KERNELS = 'packages/tensor-core/src/backends/webgpu/kernels/attention';
/** Files that only call kernels, or only count for them. */
const WITHOUT_TEXT = ['attention.ts', 'attention-chunks.ts', 'attention-work.ts'];
/** The name of a kernel, and the indented lines below it; a line of three dots skips some text. */
const EXCERPT =
  /^\/\/ `npm run kernels -- ([^`]+)` prints, among other lines:\n\/\/\n((?:\/\/ {3}.*\n)+)/gm;

const packages = {
  createWebGpuBackend,
  openNodeGpu,
  kernelCases: () => kernelCases().filter(({ name }) => name.startsWith('attention')),
};
const texts = new Map<string, string>();
for (const kernelProfile of ['hardware', 'software'] as const) {
  const options = { packages, kernelProfile, tiles: [] };
  for (const { label, wgsl } of await hardwareKernels(options)) {
    texts.set(label, plain(wgsl));
  }
}
const files = readdirSync(join(ROOT, KERNELS)).filter((name) => /^attention.*\.ts$/.test(name));

it.each(files.filter((name) => !WITHOUT_TEXT.includes(name)))(
  '%s shows what comes out of a kernel, as it comes out',
  (name) => {
    const source = readFileSync(join(ROOT, KERNELS, name), 'utf8');
    const excerpts = [...source.matchAll(EXCERPT)];
    expect(excerpts.length).toBeGreaterThan(0);
    for (const [, words, lines] of excerpts) {
      const label = words!.replace('--profile software ', '');
      expect([...texts.keys()]).toContain(label);
      let rest = texts.get(label)!;
      for (const piece of lines!.replaceAll(/^\/\/ {3}/gm, '').split(/^ *\.\.\.$/m)) {
        const at = rest.indexOf(plain(piece));
        expect(at, `${label} has, in this order: ${piece}`).toBeGreaterThanOrEqual(0);
        rest = rest.slice(at + plain(piece).length);
      }
    }
  },
);

/** Text with every run of spaces and line ends as one space. */
function plain(text: string): string {
  return text.replaceAll(/\s+/g, ' ').trim();
}
