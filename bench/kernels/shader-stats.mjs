// Reads what RADV prints about a shader with RADV_DEBUG=shaderstats,asm: its resources, its
// instructions by class, and the instructions of each loop.

const FIELDS = {
  vgprs: 'VGPRs',
  sgprs: 'SGPRs',
  spilledVgprs: 'Spilled VGPRs',
  spilledSgprs: 'Spilled SGPRs',
  scratchBytes: 'Scratch size',
  ldsBytes: 'LDS size',
  waves: 'Subgroups per SIMD',
  codeBytes: 'Code size',
};
/** How many multiply-adds an instruction does in one lane. */
const MULTIPLY_ADDS = [
  [/^v_(dual_)?(fma|fmac|fmaak|fmamk|fma_mix|fma_mixlo|fma_mixhi)_f(32|16|64)/, 1],
  [/^v_(pk_fma|pk_fmac|dot2c?|dot2acc)_/, 2],
];
/** Scalar instructions that compute nothing. */
const WAITS = /^s_(waitcnt|delay_alu|nop|clause|barrier|c?branch|endpgm|code_end|sendmsg)/;

/** @param {string} text the text between two `@@@` lines */
export function shaderStats(text) {
  const stats = {};
  for (const [key, name] of Object.entries(FIELDS)) {
    const found = new RegExp(`^${name}: (\\d+)$`, 'm').exec(text);
    if (found === null) {
      throw new Error(`no "${name}" in what the driver printed:\n${text.slice(-2000)}`);
    }
    stats[key] = Number(found[1]);
  }
  const lines = instructionsOf(text);
  const whole = countsOf(lines.map(({ names }) => names));
  const loops = loopsOf(lines);
  return { ...stats, ...whole, loops, loop: loops[0] };
}

/** The instructions in order. A paired instruction (VOPD) has two names. */
function instructionsOf(text) {
  const lines = [];
  let block = -1;
  for (const line of text.split('\n')) {
    const label = /^BB(\d+):/.exec(line);
    if (label !== null) {
      block = Number(label[1]);
      continue;
    }
    const code = /^\t([a-z]\S*)(.*?)(?:;|$)/.exec(line);
    if (code === null || block < 0) {
      continue;
    }
    const paired = /:: (v_dual_\S+)/.exec(code[2]);
    const target = /^s_c?branch/.test(code[1]) ? /BB(\d+)/.exec(code[2]) : null;
    lines.push({
      block,
      names: paired === null ? [code[1]] : [code[1], paired[1]],
      target: target === null ? undefined : Number(target[1]),
    });
  }
  return lines;
}

function countsOf(instructions) {
  const counts = {
    multiplyAdds: 0,
    dualMultiplyAdds: 0,
    matrix: 0,
    otherVector: 0,
    scalar: 0,
    lds: 0,
    load128: 0,
    load64: 0,
    loads: 0,
  };
  for (const name of instructions.flat()) {
    const found = MULTIPLY_ADDS.find(([pattern]) => pattern.test(name));
    if (found !== undefined) {
      counts.multiplyAdds += found[1];
      counts.dualMultiplyAdds += name.startsWith('v_dual_') ? found[1] : 0;
    } else if (name.startsWith('v_wmma')) {
      counts.matrix += 1;
    } else if (name.startsWith('v_')) {
      counts.otherVector += 1;
    } else if (name.startsWith('s_') && !WAITS.test(name)) {
      counts.scalar += 1;
    } else if (name.startsWith('ds_')) {
      counts.lds += 1;
    } else if (/^(buffer|global)_load/.test(name)) {
      counts.loads += 1;
      counts.load128 += name.endsWith('_b128') ? 1 : 0;
      counts.load64 += name.endsWith('_b64') ? 1 : 0;
    }
  }
  return counts;
}

/**
 * The loops, beginning with the one that multiplies most. A branch to an earlier block closes a
 * loop, and an instruction belongs to the smallest loop around it.
 */
function loopsOf(lines) {
  const loops = [];
  for (const { block, target } of lines) {
    if (target !== undefined && target <= block) {
      loops.push({ first: target, last: block, instructions: [] });
    }
  }
  loops.sort((a, b) => a.last - a.first - (b.last - b.first));
  for (const { block, names } of lines) {
    loops.find(({ first, last }) => first <= block && block <= last)?.instructions.push(names);
  }
  const counted = loops.map(({ instructions }) => countsOf(instructions));
  const weight = ({ multiplyAdds, matrix }) => multiplyAdds + 1000 * matrix;
  return counted.sort((a, b) => weight(b) - weight(a));
}
