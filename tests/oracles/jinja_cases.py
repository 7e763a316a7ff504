"""Small templates: listed ones for each part of the language, and expressions by chance."""
import re

import jinja2

VARIABLES = {"s": "Hello World", "t": " x\ty \n", "e": "", "u": "Élan ǆ Яв", "n": 7, "z": 0, "f": 2.5,
             "g": -0.75, "big": 1e22, "yes": True, "no": False, "nil": None, "l": [3, 1, 2], "w": ["b", "A", "c"],
             "d": {"b": 1, "a": [1, {"x": "y"}], "C": None}, "m": [{"k": "x", "v": 1}, {"k": "y", "v": 2},
             {"k": "X", "v": None}], "empty": [], "csv": "a,b,,c", "text": "one two  three\nfour", "h": "<a href='x'>&\"</a>"}

EXPRESSIONS = """
1 + 2 * 3 - 4 // 3 % 5|7 // -2, -7 // 2, -7 % 3, 7 % -3|7 // 2.0|2 ** 10|1 / 2, 7 / 7, 1e16, 1e15, 1.0, 123456789012345680.0, 1e-5, 0.0001, 1.5e300
0x1F|1e3, 0|true, false, none, True, False, None|'a' ~ 1 ~ none ~ [1] ~ 2.0|'a' 'b' "c"|"\\n\\t\\\\\\x41\\u00e9\\101\\q"|s[0], s[-1], s[20] is defined|s[1:4], s[:-1], s[::-1], s[5:1], s[-3:], s[:100], s[2::-1], s[:3:-1], s[9:2:-1], s[-99:99], s[99::-1]|s[::2]
l[1:], l[::-1], l[-2:], l[5:], l[1], l[:0:-1], l[9] is undefined|d.b, d['a'], d.a[1].x, d.zzz is defined, d['zzz'] is defined|(1, 2), (1,), (), [1, 'a', [2.0]], {'a': 1, 2: none, 'a': 3}
1 < 2 < 3, 1 < 3 < 2, 1 == 1.0, 1 == true, 'a' < 'b', [1, 2] < [1, 3], (1,) == (1,), [1] == (1,)|1 in l, 9 not in l, 'ell' in s, 'b' in d, 'q' in d, 'x' in e
yes and no, no or 'x', not no, nil or 0 or '', 1 and 2, not nil and yes|'a' if yes else 'b', 'a' if no else 'b', 'a' if no|(1 if yes else 2) + 3, 1 if no else 2 if no else 3
s|upper, s|lower, u|upper, u|lower, u|capitalize, s.title(), u.title(), s.capitalize(), s.upper(), s.lower()|t|trim, 'xxaxx'|trim('x'), t.strip(), t.lstrip(), t.rstrip(), 'abcba'.strip('ab')
csv.split(','), text.split(), text.split(' '), text.split(none, 1), csv.split(',', 2), csv.split(',', 0), 'aXXbXXc'.split('XX')
s.replace('l', 'L'), s.replace('l', 'L', 1), s|replace('o', '0'), s|replace('o', '0', 1), 'abc'.replace('', '-'), 'abc'|replace('', '-', 2), 12|replace(1, 3)|s.startswith('He'), s.endswith(('x', 'ld')), s.startswith(('H', 1)), s.endswith('')|s.startswith('l', 2)|w|join, w|join(', '), l|join('+'), m|join('/', attribute='k'), [1, none, 'x']|join('|')
l|length, s|length, d|length, e|count, u|length|l|first, l|last, s|first, s|last, empty|first is defined, empty|last is undefined, d|first|l|sort, l|sort(reverse=true), w|sort, w|sort(case_sensitive=true), m|sort(attribute='k')|map(attribute='v')|list
l|min, l|max, w|min, w|max, empty|min is defined, m[:2]|max(attribute='v')|l|reverse|list, s|reverse, w|unique|list, ['a','A','b']|unique|list, ['a','A']|unique(true)|list, m|unique(attribute='k')|list
m|map(attribute='k')|list, w|map('upper')|list, m|map(attribute='zz', default='?')|list, w|map('replace', 'b', 'B')|join|m|selectattr('v')|list|length, m|selectattr('v', 'equalto', 2)|map(attribute='k')|first, m|rejectattr('v', 'none')|list|length, l|select('in', [1, 3])|list, l|reject('eq', 1)|list, l|select|list, m|selectattr('k', 'in', ['x', 'y'])|list|length
d|dictsort, {'B': 2, 'a': 1}|dictsort|d|items|list, d.items()|list, d.keys()|list, d.values()|list, d.items()|length, d.get('b'), d.get('q'), d.get('q', 5)
d|tojson, d|tojson(indent=2), u|tojson(ensure_ascii=true), [1.0, 1e20, true, none, '<\\'"\\\\']|tojson, {1: 2, none: 3, true: 4, 1.5: 6}|tojson, {}|tojson(indent=4), []|tojson(indent=1), [[], {}]|tojson(indent='--'), (1, 'x')|tojson, m|tojson(indent=0)
nil|default('x'), zz|default('x'), zz|d, e|default('x', true), no|d('y', boolean=true)|'3'|int, ' 4 '|int, '3.7'|int, 'x'|int, 'x'|int(9), 3.9|int, -3.9|int, yes|int, nil|int, 'inf'|int, '1e3'|int, '-12'|int, '+5'|int, '+-5'|int, '.5'|int, '5.'|int, '-'|int, ''|int
1.5|string, [1]|string, nil|string, 'a'|string|'{} {}'.format('a', 1), '{{}}{}'.format(1), '{}'.format([1, 'x']), '{}'.format(), '{'.format(1), '}'.format(1)|text|indent, text|indent(2, true), 'a\\n\\nb'|indent(2), 'a\\nb'|indent('> '), ''|indent(3, first=true), 'a\\r\\nb\\rc\\n'|indent(1), 'a\\r'|indent, '\\n'|indent(2, first=true)
h|safe|(h|safe) ~ '<'|'<'|safe + '<'|h|safe + h|h + (h|safe)|(h|safe)[1:] + '<'|'<' + (h|safe) * 2|h|safe|length|h|safe|tojson|[h|safe]|range(3)|list, range(2, 5)|list, range(5, 0, -2)|list, range(3)[1], range(0)|length, 2 in range(3)|s is string, n is number, f is float, n is integer, yes is boolean, yes is integer, yes is number, nil is none, zz is undefined, s is defined
l is sequence, d is mapping, d is sequence, s is sequence, l is iterable, n is iterable, s is iterable, d.items() is sequence, d.items() is iterable, zz is sequence, zz is iterable, zz is string, range(2) is sequence|yes is true, no is false, n is eq 7, n is ne(7), 's' is in s, n in l, n is not in l, not s is defined, s is not defined, n is defined and n > 3|1 is number is defined
loop is defined|s|list, d|list, 'ab'|list, empty|list|-n, +n, - -n, -f, not not n, -l[0]|s|upper|lower|capitalize|length, (s ~ t)|trim|length, (l + [4])|length, 'ab' * 3, 3 * 'x', 'a' * -1, 'ab' * 0, s * 101
true + 1, true == 1, false < 1, yes * 3, [1, 2] + [3], (1,) + (2, 3), 'a' + 'b'|nil == none, zz == qq, zz == none, zz ~ 'x', zz|length, zz|list, zz|upper, zz|trim, zz or 'y', zz in l, 'x' in zz|l == [3, 1, 2], d == d, d == {'b': 1}, {'a': 1, 'b': 2} == {'b': 2, 'a': 1}, 1 != 2, nil != none
messages[0].role, messages[0]['content'], messages|length, add_generation_prompt, bos_token, eos_token, tools, documents|s.upper().lower()[0:2]|d.a.1.x, l.0, m.1.k|[1, 2,], {'a': 1,}, (1, 2,)|n|string|int|'a\\
b'|1.e0|1..real|zz.a|zz()|n()|nil.x is defined|nil['x'] is defined, n['x'] is defined, n.foo is defined, l['x'] is defined, l.foo is defined|s.foo is defined, s['foo'] is undefined|l|length.x|1 if|[1|{'a'}|foo|bar|(1|l.append(4)|d.update({})|d.pop('b')|1/0|1 // 0|5 % 0|'a' + 1|'a' - 'b'|[1] + (1,)|-'a'|1 < 'a'|nil < 1|l < s|range(1000000)|[1] in 5|1 in 'abc'|raise_exception('no')|s|nosuch|s is nosuch|{[1]: 2}|d[[1]] is defined|d|tojson|safe|upper|zz|int|zz|tojson|zz + 1|zz.x.y|l|join(d)|'x'.join(l)|s.split('')|l|map|list|l|map('nosuch')|list|l|select('nosuch')|list|[zz, none]|nil|list|n|length|5|first|d|sort|[1, 'a']|sort|[none, 1]|min
l|groupby('k')|list|n is divisibleby(2)|s.isalpha()|cycler('a')|'%s' % s|'{0}'.format(s)|l * 2|m|tojson(sort_keys=true)
""".strip()

STATEMENTS = [
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }} {% endfor %}",
    "{% for x in l if x > 1 %}{{ x }}{{ loop.length }}{% else %}none{% endfor %}",
    "{% for x in empty %}x{% else %}none{% endfor %}", "{% for x in l if x > 9 %}x{% else %}none{{ x }}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% break %}{% else %}E{% endfor %}", "{% for x in l %}{% continue %}{% else %}E{% endfor %}",
    "{% for x in [1] %}{% for y in [] %}{% else %}{% break %}{% endfor %}a{% endfor %}b",
    "{% for x in l %}{% set q %}{{ x }}{% if x == 1 %}{% break %}{% endif %}{% endset %}{{ q }}{% endfor %}.",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}", "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in l %}{% endfor %}", "{% for c in s %}{{ c }}-{% endfor %}", "{% for x in nil %}{% endfor %}", "{% for x in zz %}{% else %}E{% endfor %}",
    "{% set x = 1 %}{% for i in l %}{{ x }}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}", "{% set ns = namespace(x=1, y='a') %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ ns.y }}{{ ns.q is defined }}",
    "{% set d.x = 1 %}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, = [5] %}{{ a }}", "{% set (a, b) = l[:2] %}{{ a }}{{ b }}", "{% set a = 1, 2 %}{{ a }}",
    "{% set x %}a{{ n }}b{% endset %}{{ x }}{{ x|length }}", "{% set x | upper | replace('A', 'z') %}a{{ s }}{% endset %}{{ x }}", "{% set x %}{% set y = 1 %}{% endset %}{{ y is defined }}",
    "{% if n > 5 %}a{% elif n > 3 %}b{% else %}c{% endif %}", "{% if no %}a{% elif n > 3 %}b{% endif %}{% if no %}q{% endif %}", "{% if yes: %}x{% endif %}", "{% if n, %}x{% endif %}",
    "{% if yes %}{% set v = 1 %}{% endif %}{{ v }}", "{% if no %}{% set v = 1 %}{% endif %}{{ v is defined }}",
    "{% macro f(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }} {{ f(1, 3) }} {{ f(a=5, b=6) }} {{ f(1, c=9) }} {{ f() }}", "{% macro f(a) %}{{ a }}{{ varargs }}{% endmacro %}{{ f(1) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=2) }}", "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro f() %}{{ q }}{% endmacro %}{% set q = 1 %}{{ f() }}{% for i in l %}{% set q = 2 %}{{ f() }}{% endfor %}", "{% macro f() %}x{% endmacro %}{% call f() %}y{% endcall %}",
    "{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}{{ a()|lower ~ b() }}", "{% set f = s.upper %}{{ f() }}", "{% set r = range %}{{ r(2)|list }}",
    "{% filter upper %}a{{ s }}{% endfilter %}", "{% filter replace('a', 'b')|trim %} aa {% endfilter %}", "{% with a=1, b=n %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}",
    "{% generation %}{{ s }}{% set q = 1 %}{% endgeneration %}{{ q is defined }}", "{% print n, s %}", "{# c #}a{#- c -#} b {#+ c +#}c", "  {# c #}\n  x", "a {%- if yes -%} b {%- endif -%} c", "  {%+ if yes %}x{% endif +%}\ny", "{% if yes %}\n\nx\n{% endif %}\n\ny",
    "   {% if yes %}  \n  x  {{ n }}\n  {% endif %}\n  y", "\n  {{- n -}}  \n x", "{% raw %}{{ x }}{% if %}{% endraw %}y", "a\r\nb\rc\n\n", "x\n", "x\n\n", "{{ 'a\r\nb' }}", "{{\nn\n}}\n{%\nif yes\n%}y{%\nendif\n%}",
    "{{ {'a': {'b': 1}}['a'] }}", "{{ {} }}{{ {'a': 1}}}", "{% set x = {'a': 1} %}{{ x.a }}", "{{ '}}' }}{{ '%}' }}", "{% set dict = s %}{{ dict }}",
    "{% set g = w|map('upper') %}{{ g|join }}{{ g|join }}{{ (w|map('upper'))|length }}", "{% set g = l|reverse %}{{ g|first }}{{ g|list }}", "{% for x in w|map('upper') %}{{ x }}{{ loop.length }}{% endfor %}", "{{ w|map('upper') }}", "{{ l|reverse|last }}",
    "{% block x %}{% endblock %}", "{% include 'x' %}", "{% do l.append(1) %}", "{% nosuch %}", "{% if yes %}", "{% endif %}", "{% for x in l %}{% endif %}", "{{ n", "{% if", "{# x", "{{ ) }}", "{{ (n] }}", "{{ 'x }}", "{% else %}", "{% break %}", "{% if x = 1 %}{% endif %}", "{% set 1 = 2 %}", "{% set none = 2 %}",
    "{% if no %}{{ s|nosuch }}{{ s is nosuch }}{% endif %}x", "{{ s|nosuch if no else 1 }}", "{% for x in l %}{{ s|nosuch }}{% endfor %}", "{% if yes %}{{ s|nosuch }}{% endif %}",
    "{% for i in range(3) %}{% for j in range(i) %}{{ loop.index }}{{ loop.length }}{% endfor %}{{ loop.index }}{% endfor %}", "{% for x in l recursive %}{% endfor %}", "{%for x in l%}{{x}}{%endfor%}", "{{ loop }}", "{{ namespace }}", "{% macro f() %}{% endmacro %}{{ f }}",
    "{% set x = 1 %}{% macro f(x) %}{{ x }}{% set x = 5 %}{{ x }}{% endmacro %}{{ f(2) }}{{ x }}", "{% for m in messages %}{% set messages = 5 %}{{ messages }}{% endfor %}{{ messages|length }}", "{% for item in m %}{{ item.k ~ '=' ~ item.v }}{{ ',' if not loop.last }}{% endfor %}",
    "{{ 'a' if no }}{{ ('a' if no) is defined }}", "{{ x if x is defined else 'd' }}", "{{ d.items }}", "{{ [d.keys()]|length }}", "{{ s.__class__ }}", "{{ ''.__class__.__mro__ }}", "{{ d.__len__ is defined }}", "{{ (1).__class__ }}", "{% set _ = d.items() %}x", "{{ n is defined if yes else 2 }}",
]

ATOMS = ["s", "t", "e", "u", "n", "z", "f", "g", "yes", "no", "nil", "l", "w", "d", "m", "empty", "csv", "zz", "1", "0", "-1", "2.5",
         "'a'", "','", "''", "'Aé'", "[1, 'b']", "[]", "{'a': 1}", "(1, 2)", "range(3)", "messages", "m[0]", "d.a", "true", "none", "'x\\ny'"]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
FILTERS = ["upper", "lower", "capitalize", "trim", "length", "list", "first", "last", "join", "join(',')", "sort", "reverse",
           "unique", "min", "max", "tojson", "tojson(indent=2)", "default('q')", "d('', true)", "int", "string", "replace('a', 'bb')",
           "items", "dictsort", "map('upper')", "map('string')", "map(attribute='k')", "select", "reject('none')", "select('string')",
           "selectattr('k')", "indent", "indent(1, true)", "count", "safe"]
TESTS = ["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float", "boolean", "true", "false",
         "eq 1", "in l", "not none", "ne 'a'", "equalto true"]
POSTFIX = ["[0]", "[-1]", "[1:]", "[::-1]", "[:2]", "[2::-1]", "[:0:-1]", "['k']", ".k", ".b", "['a']", ".upper()", ".strip()", ".split(',')", ".split()",
           ".items()", ".keys()", ".get('a')", ".title()", ".startswith('a')", ".replace('l', '')", "[n]", "[zz]", "[nil:2]"]


def listed():
    made = ["{{ " + expression + " }}" for line in EXPRESSIONS.replace("\\\n", "\x00").split("\n")
            for expression in split_cases(line.replace("\x00", "\\\n"))]
    return made + STATEMENTS


def split_cases(line):
    """The line's cases, which stand between "|" that begin no filter, and what stands between their
    commas."""
    cases = re.split(rf"\|(?!(?:{'|'.join(jinja2.filters.FILTERS)})\b)", line)
    return cases + [part.strip() for case in cases for part in case.split(", ")]


def expression(random, depth):
    pick = random.random()
    if depth == 0 or pick < 0.15:
        return random.choice(ATOMS)
    inner = expression(random, depth - 1)
    if pick < 0.40:
        return f"{inner}|{random.choice(FILTERS)}"
    if pick < 0.55:
        return f"({inner}){random.choice(POSTFIX)}"
    if pick < 0.75:
        return f"({inner} {random.choice(BINARY)} {expression(random, depth - 1)})"
    if pick < 0.82:
        return f"({inner} is {random.choice(TESTS)})"
    if pick < 0.88:
        return f"({inner} if {expression(random, depth - 1)} else {expression(random, depth - 1)})"
    if pick < 0.92:
        return f"(not {inner})"
    if pick < 0.96:
        return f"[{inner}, {expression(random, depth - 1)}]"
    return "{'k': " + inner + "}"


def made(random):
    inner = expression(random, random.randrange(1, 5))
    pick = random.random()
    if pick < 0.7:
        return "{{ " + inner + " }}"
    if pick < 0.85:
        return "{% for x in " + inner + " %}{{ x }}{{ loop.last }};{% else %}-{% endfor %}"
    return "{% set x = " + inner + " %}{{ x is defined }}{% if x %}{{ x|string }}{% endif %}"
