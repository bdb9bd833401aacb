// Rules for the text of kernels, where compilers differ although the specification doesn't leave it
// to them, or where it does. A kernel that breaks one gives right values on the drivers that tests
// run on, and wrong ones elsewhere.

/** Operators whose result a compiler with fast math may know where an operand is not finite. */
const FOLDED = new Set(['==', '!=', '<', '>', '<=', '>=', '+', '-', '*', '/', '%']);
/** Functions of which the same is true. `select` isn't one of them: it hands a value on. */
const FOLDED_CALLS = new Set(['abs', 'clamp', 'exp', 'exp2', 'fma', 'log', 'log2', 'max', 'min']);
/** The bits of infinity, without the sign. What lies above them is NaN. */
const INFINITY_BITS = 0x7f800000;
const LARGEST_F32 = 3.4028235677973366e38; // the numbers below it round to the largest f32

interface Token {
  readonly text: string;
  readonly line: number;
}

/** Returns what breaks a rule, as `line 12: ...`, in the order of the text. */
export function wgslFaults(wgsl: string): string[] {
  const tokens = tokensOf(wgsl);
  const constants = constantsOf(tokens);
  const loops = new LoopTracker();
  const faults: string[] = [];
  tokens.forEach((token, i) => {
    loops.see(token.text);
    const fault = faultAt(tokens, i, constants, loops.isInside);
    if (fault !== undefined) {
      faults.push(`line ${token.line}: ${fault}`);
    }
  });
  return faults;
}

function faultAt(
  tokens: readonly Token[],
  at: number,
  constants: ReadonlyMap<string, number>,
  isInLoop: boolean,
): string | undefined {
  const { text } = tokens[at]!;
  switch (text) {
    case 'var':
      return isInLoop ? withoutValue(tokens, at) : undefined;
    case 'inf':
    case 'nan':
      return ofSpecialValue(tokens, at);
    case 'bitcast':
      return ofBits(tokens, at, constants);
    case '==':
    case '!=':
      return ofSelf(tokens, at);
    default:
      return isTooLarge(text) ? `${text} is beyond the largest f32` : undefined;
  }
}

/** Knows whether the place in a text is inside the body of a loop. */
class LoopTracker {
  readonly #isLoop: boolean[] = [];
  #isNext = false;
  #numLoops = 0;

  get isInside(): boolean {
    return this.#numLoops > 0;
  }

  see(text: string): void {
    if (text === 'for' || text === 'while' || text === 'loop') {
      this.#isNext = true;
    } else if (text === '{') {
      this.#isLoop.push(this.#isNext);
      this.#numLoops += this.#isNext ? 1 : 0;
      this.#isNext = false;
    } else if (text === '}') {
      this.#numLoops -= this.#isLoop.pop() === true ? 1 : 0;
    }
  }
}

/**
 * A local without a value is zero in each turn of a loop by the specification, but Dawn and naga 29
 * leave what the turn before put there (gfx-rs/wgpu#9592).
 */
function withoutValue(tokens: readonly Token[], at: number): string | undefined {
  const words: string[] = [];
  for (let i = at; i < tokens.length && tokens[i]!.text !== ';'; i++) {
    words.push(tokens[i]!.text);
  }
  return words.some((word) => word === '=' || word === '>=')
    ? undefined
    : `${words.join(' ')} in a loop has no value`;
}

/** An infinity or NaN in a comparison or a sum may be folded to what holds for finite numbers. */
function ofSpecialValue(tokens: readonly Token[], at: number): string | undefined {
  const textAt = (i: number) => tokens[i]?.text ?? '';
  if (textAt(at + 1) !== '(' || textAt(at - 1) === 'fn') {
    return undefined;
  }
  let [first, last] = [at, at + 2];
  for (let before = -1; before !== first; ) {
    before = first;
    if (textAt(first - 1) === '-' && !isOperand(textAt(first - 2))) {
      first -= 1; // a sign sets one bit
    } else if (textAt(first - 1) === '(' && textAt(last + 1) === ')') {
      const start = startOfVector(tokens, first - 2);
      if (start !== undefined || !isOperand(textAt(first - 2))) {
        [first, last] = [start ?? first - 1, last + 1];
      }
    }
  }
  const callee = calleeOf(tokens, first);
  const isFolded =
    FOLDED.has(textAt(first - 1)) || FOLDED.has(textAt(last + 1)) || FOLDED_CALLS.has(callee ?? '');
  const around = tokens.slice(Math.max(0, first - 2), last + 3).map(({ text }) => text);
  return isFolded ? `${textAt(at)}() is computed with: ${around.join(' ')}` : undefined;
}

/** The first token of `vec4` or `vec4<f32>` that ends at a token. */
function startOfVector(tokens: readonly Token[], end: number): number | undefined {
  const isTyped = tokens[end]?.text === '>' && tokens[end - 2]?.text === '<';
  const start = isTyped ? end - 3 : end;
  return /^vec[234]f?$/.test(tokens[start]?.text ?? '') ? start : undefined;
}

/** The name of the function of whose arguments the token is the first of one. */
function calleeOf(tokens: readonly Token[], at: number): string | undefined {
  if (!/^[(,]$/.test(tokens[at - 1]?.text ?? '')) {
    return undefined;
  }
  let depth = 0;
  for (let i = at - 1; i > 0; i--) {
    const { text } = tokens[i]!;
    depth += text === ')' ? 1 : text === '(' ? -1 : 0;
    if (depth < 0) {
      return tokens[i - 1]!.text;
    }
  }
  return undefined;
}

/** Bits of an infinity or NaN that stand in the text are as known to a compiler as a number. */
function ofBits(
  tokens: readonly Token[],
  at: number,
  constants: ReadonlyMap<string, number>,
): string | undefined {
  const text = (offset: number) => tokens[at + offset]?.text ?? '';
  if (text(2) !== 'f32' || text(6) !== ')') {
    return undefined;
  }
  const bits = constants.get(text(5)) ?? integerOf(text(5));
  const isNumber = bits === undefined || (bits & 0x7fffffff) < INFINITY_BITS;
  return isNumber ? undefined : `bitcast of ${text(5)} is not finite, as a compiler sees`;
}

/** `x != x` asks for NaN, and is folded to false where a compiler assumes that there is none. */
function ofSelf(tokens: readonly Token[], at: number): string | undefined {
  const [before, left, operator, right, after] = [-2, -1, 0, 1, 2].map(
    (offset) => tokens[at + offset]?.text ?? '',
  );
  const isAlone = before !== '.' && !/^[.[(]$/.test(after!);
  return left === right && /^[a-z_]/i.test(left!) && isAlone
    ? `${left} ${operator} ${right} is known where there is no NaN`
    : undefined;
}

/** The numbers of the module's scope that nothing assigns, by name. */
function constantsOf(tokens: readonly Token[]): ReadonlyMap<string, number> {
  const constants = new Map<string, number>();
  const assigned = new Set<string>();
  let start = 0; // of the statement
  tokens.forEach(({ text }, i) => {
    if (text === ';' || text === '{' || text === '}') {
      start = i + 1;
    }
    if (text !== '=') {
      return;
    }
    const words = tokens.slice(start, i).map((token) => token.text);
    const name = words[words[0] === 'var' && words[1] === '<' ? 4 : 1];
    const value = integerOf(tokens[i + 1]!.text);
    if (!/^(const|var|let|override)$/.test(words[0]!)) {
      assigned.add(words[0]!);
    } else if (name !== undefined && value !== undefined && tokens[i + 2]?.text === ';') {
      constants.set(name, value);
    }
  });
  for (const name of assigned) {
    constants.delete(name);
  }
  return constants;
}

/** The value of an integer's literal. */
function integerOf(text: string): number | undefined {
  return /^(0x[0-9a-f]+|\d+)[iu]?$/i.test(text) ? Number(text.replace(/[iu]$/, '')) : undefined;
}

function isTooLarge(text: string): boolean {
  return text.length > 3 && Number.parseFloat(text) >= LARGEST_F32;
}

/** Whether a token ends an operand, so that a minus behind it subtracts. */
function isOperand(text: string): boolean {
  return /^([\w.]+|\)|\])$/.test(text) && text !== 'return';
}

function tokensOf(wgsl: string): Token[] {
  const text = wgsl.replaceAll(/\/\/.*/g, '');
  const pattern =
    /[a-z_]\w*|0x[0-9a-f]+[iu]?|(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?[iufh]?|[!=<>+\-*/%|&^]=|&&|\|\||->|\S|\n/gi;
  const tokens: Token[] = [];
  let line = 1;
  for (const [match] of text.matchAll(pattern)) {
    if (match === '\n') {
      line += 1;
    } else {
      tokens.push({ text: match, line });
    }
  }
  return tokens;
}
