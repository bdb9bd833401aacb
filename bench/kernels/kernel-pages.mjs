// What `npm run kernels` prints, and which kernels words stand for.

import { factsOf } from './text-facts.mjs';

const NEAREST = 5;

/** The kernel of that name, or those whose names have all of the words; all without words. */
export function matching(kernels, words) {
  const same = kernels.filter(({ label }) => label === words.join(' '));
  const isMeant = ({ label }) => words.every((word) => has(label, word));
  return same.length > 0 ? same : kernels.filter(isMeant);
}

function has(label, word) {
  return label.toLowerCase().includes(word.toLowerCase());
}

/** The names that have most of the words, or words with most of their neighboring letters. */
export function nearest(kernels, words) {
  const likeness = (word, other) => {
    const [own, others] = [pairsOf(word), pairsOf(other)];
    const shared = own.filter((pair) => others.includes(pair)).length;
    return (2 * shared) / Math.max(1, own.length + others.length);
  };
  const score = (label) =>
    words.reduce((sum, word) => {
      const best = Math.max(...label.split(' ').map((other) => likeness(word, other)));
      return sum + (has(label, word) ? 1 : best);
    }, 0);
  return [...new Set(kernels.map(({ label }) => label))]
    .map((label) => [label, score(label)])
    .sort(([a, x], [b, y]) => y - x || a.length - b.length)
    .slice(0, NEAREST)
    .map(([label]) => label);
}

/** The neighboring letters of a word, with its ends: ` h`, `he`, `ea`, `ad`, `d ` of `head`. */
function pairsOf(word) {
  const padded = ` ${word} `;
  return Array.from({ length: padded.length - 1 }, (_, i) => padded.slice(i, i + 2));
}

/** A line for each kernel: its bytes of text, invocations, bytes of workgroup memory, and name. */
export function listOf(kernels) {
  const lines = kernels.map(({ label, wgsl }) => {
    const { bytes, invocations, memoryBytes } = factsOf(wgsl);
    return [bytes, invocations, memoryBytes]
      .map((number) => `${number}`.padStart(8))
      .concat(` ${label}`);
  });
  const head = ['   bytes', '   lanes', '  shared', ' name'];
  return `${[head, ...lines].map((cells) => cells.join('')).join('\n')}\n`;
}

/**
 * The page of each kernel: its facts, what a compiler made of it, and its text.
 * @param compiled `figures` of compileKernels, or `missing`, why there are none
 */
export function pagesOf(kernels, { figures, missing }) {
  return kernels
    .map(({ label, wgsl }, i) =>
      [label, factLines(wgsl), isaLines(figures?.[i], missing), '', wgsl].join('\n'),
    )
    .join('\n');
}

function factLines(wgsl) {
  const facts = factsOf(wgsl);
  const memory = facts.memory.map(({ name, type, bytes }) => `${name} ${bytes} (${type})`);
  return [
    line('text', `${facts.bytes} bytes, ${facts.lines} lines`),
    line('workgroup', `${facts.workgroup.join(' x ')}, ${facts.invocations} invocations`),
    line('shared', [`${facts.memoryBytes} bytes`, ...memory].join('; ')),
    ...facts.bindings.map(({ index, name, type, access }) =>
      line(`binding ${index}`, `${name}: ${type}, ${access}`),
    ),
    line('Params', facts.params.join(', ')),
  ].join('\n');
}

function isaLines(figures, why) {
  if (figures === undefined) {
    return line('RDNA 3', `not compiled: ${why}`);
  }
  const { vgprs, ldsBytes, waves, codeBytes, loop, failures } = figures;
  const spilled = figures.spilledVgprs + figures.spilledSgprs;
  return [
    line(
      'RDNA 3',
      `${vgprs} VGPRs, ${spilled} spilled, ${ldsBytes} bytes of LDS, ${waves} waves a SIMD, ${codeBytes} bytes of code (compiled by RADV for navi31, never run)`,
    ),
    ...(loop === undefined
      ? []
      : [
          line(
            'loop',
            `${loop.multiplyAdds} multiply-adds (${loop.dualMultiplyAdds} dual-issued), ${loop.matrix} matrix, ${loop.otherVector} other vector, ${loop.scalar} scalar, ${loop.lds} LDS, ${loop.loads} loads`,
          ),
        ]),
    ...(failures.length === 0 ? [] : [line('gates', `fails: ${failures.join(', ')}`)]),
  ].join('\n');
}

function line(name, value) {
  return `  ${name.padEnd(11)}${value}`;
}
