{ lib }:
let
  inherit (builtins)
    concatMap
    elem
    elemAt
    filter
    foldl'
    genList
    head
    isList
    length
    ;
in
{
  inherit (builtins)
    all
    any
    concatLists
    concatMap
    elem
    elemAt
    filter
    foldl'
    genList
    head
    length
    map
    sort
    tail
    ;
  optional = condition: x: if condition then [ x ] else [ ];
  optionals = condition: xs: if condition then xs else [ ];
  singleton = x: [ x ];
  toList = x: if isList x then x else [ x ];
  flatten = x: if isList x then concatMap lib.flatten x else [ x ];
  range = a: b: genList (n: a + n) (if b < a then 0 else b - a + 1);
  last = xs: elemAt xs (length xs - 1);
  init = xs: lib.take (length xs - 1) xs;
  take = n: xs: genList (elemAt xs) (lib.min n (length xs));
  drop = n: xs: genList (i: elemAt xs (i + n)) (lib.max 0 (length xs - n));
  reverseList = xs: genList (i: elemAt xs (length xs - 1 - i)) (length xs);
  unique = foldl' (acc: x: if elem x acc then acc else acc ++ [ x ]) [ ];
  subtractLists = gone: filter (x: !elem x gone);
  imap0 = f: xs: genList (i: f i (elemAt xs i)) (length xs);
  imap1 = f: lib.imap0 (i: f (i + 1));
  findFirst =
    p: default: xs:
    let
      found = filter p xs;
    in
    if found == [ ] then default else head found;
  count = p: xs: length (filter p xs);
  foldr =
    f: z: xs:
    foldl' (acc: x: f x acc) z (lib.reverseList xs);
  sortOn = f: builtins.sort (a: b: f a < f b);
}
