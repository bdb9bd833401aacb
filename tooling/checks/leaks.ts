// Finds what an engine or a locale decides in a source file: the functions of Math that ECMAScript
// leaves to the engine, powers, and orders of words.
import ts from 'typescript';

const INEXACT = /^(a?(sin|cos|tan)h?|atan2|exp|expm1|log|log2|log10|log1p|pow|cbrt|hypot|random)$/;
const LOCAL = /^(localeCompare|Intl|toLocale(Lower|Upper)Case)$/;
/** Parsing takes long, so it is done only where the text has one of these. */
const SUSPECT = [
  /\bMath\b(?!\.(abs|ceil|clz32|floor|fround|imul|max|min|round|sign|sqrt|trunc|[A-Z])\b)/,
  /(?<![/*])\*\*(?![*/]| -?\d+\b(?!\.))/,
  /(?<!(?<![\w.])\d+) \*\* /,
  /localeCompare|Intl|toLocale[LU]/,
];

/** The leaks of a source file, such as `line 3: Math.cos`. */
export function leaksIn(code: string): readonly string[] {
  if (!SUSPECT.some((pattern) => pattern.test(code))) {
    return [];
  }
  const file = ts.createSourceFile('leaks.ts', code, ts.ScriptTarget.Latest, true);
  const leaks: string[] = [];
  const visit = (node: ts.Node): void => {
    const leak = leakOf(node);
    if (leak !== undefined) {
      const { line } = file.getLineAndCharacterOfPosition(node.getStart());
      leaks.push(`line ${line + 1}: ${leak}`);
    }
    ts.forEachChild(node, visit);
  };
  visit(file);
  return leaks;
}

function leakOf(node: ts.Node): string | undefined {
  if (ts.isIdentifier(node)) {
    return LOCAL.test(node.text) ? node.text : node.text === 'Math' ? mathLeak(node) : undefined;
  }
  return isPower(node) && !(isWhole(node.left) && isWholeConstant(node.right))
    ? node.getText()
    : undefined;
}

/** Math itself is a leak where it is handed on, for then no name says what is called. */
function mathLeak({ parent }: ts.Identifier): string | undefined {
  if (!ts.isPropertyAccessExpression(parent)) {
    return `Math in ${parent.getText()}`;
  }
  return INEXACT.test(parent.name.text) ? parent.getText() : undefined;
}

function isPower(node: ts.Node): node is ts.BinaryExpression {
  return (
    ts.isBinaryExpression(node) &&
    [ts.SyntaxKind.AsteriskAsteriskToken, ts.SyntaxKind.AsteriskAsteriskEqualsToken].includes(
      node.operatorToken.kind,
    )
  );
}

function isWhole(node: ts.Node): boolean {
  return ts.isNumericLiteral(node) && Number.isSafeInteger(Number(node.text));
}

/** Whether a number is whole and named by its text: 20, -126 or TABLE_BITS - 1. */
function isWholeConstant(node: ts.Node): boolean {
  if (ts.isParenthesizedExpression(node)) {
    return isWholeConstant(node.expression);
  }
  if (ts.isPrefixUnaryExpression(node)) {
    return isWholeConstant(node.operand);
  }
  if (ts.isBinaryExpression(node)) {
    const isSum = [ts.SyntaxKind.PlusToken, ts.SyntaxKind.MinusToken];
    return (
      isSum.includes(node.operatorToken.kind) &&
      isWholeConstant(node.left) &&
      isWholeConstant(node.right)
    );
  }
  return isWhole(node) || (ts.isIdentifier(node) && /^[A-Z][A-Z0-9_]*$/.test(node.text));
}
