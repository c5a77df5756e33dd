"""The grids of GGUF's IQ types: the vectors of 8 (4) magnitudes that a code of 8 to 11 bits chooses.

They are points of a lattice that were found by search, and no formula gives them: the tables are ggml's (grids of
ggml-common.h, MIT License). A vector is a number whose digits are the places of its values, the first one lowest. The
vectors of a grid ascend; a table has the difference of each number from the one before, as 16 bits, deflated.
"""

import base64
import zlib
from functools import cache
from typing import Final, Literal

import numpy as np

from appliance.loading.formats.bits import Array

GridName = Literal["iq1", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s"]

_IQ2_XXS: Final = (
    "c-l>o%_~G<6vlt=9q$<5%`|34k?SKV7I(u;lA4l4*+^L^!%A!<ikg~|KVnKTNhv9mg%S%=w)R%GQp&<c@!UIC>2}Y#=bYy}=Q-"
    "zsLqv~5t!$%wRBt-"
    "?j!`Gyt~f@9#UN)HV4Nf?%DNON89y5jaZ%yA0$h@XFz%yAd~vol!Belxg0Uf{Eu1+_kx}kR@NTPoox=47^VWjt9`#~67W<9yW2<VGGE*Fo;w"
    "@0&k*B1}K9`(ZU-bwbVsbc<y_Ww8aVbuP?P1Vtn+%&=nA_I>8^>tYyy_<FQj%A{mBtowsw5}}8Vb_Cqv!?WRCz5o%!{Lo2c}uKK3`0G7i5c!"
    "vCO+PIJ(6bvz(c@^3&>n;@kTD{n}_wy^~aQqXr>2xO48({w`Um*wxMYdFI3X{R@{06U?xsy33JqOq2Pv{%zY?Qg)R`U96jKnv54Y<TX0O5PO"
    "=RadI_R`~ssbK5z"
)
_IQ2_XS: Final = (
    "c-noE!An$O6vcnv8=k#nm>L<!j4_`kgAv8U!9{H(6H+7>fsG^TI4-n^Bnq5}S>(QT5JHG8T86tI2v@CI)SuwmUCVIc`M!BmGsBDw@6EmU-Fx"
    "o2=U(tg=;v|4y%YMcM+V#ci+XZRwy!UhwwyXjb5@eTAtiay5*=}GpPTejHRpHolrz#5Bh4_o&dPFC-"
    ">0dWW;V7<E@m=LD6FFMBJL?tRU}|r(TaaQi==V}y0VDKDEcgB8wqvav}akxGQ!-AD~{w%^3_<+<F>pB-YBcW2}>0H)+ri&LZ`a50*2UQlr_y"
    "&awvmhc%-?~Jm87EcPyJg2wC+hNSz<be9aX$=ux!V-"
    "+khC?K;owi$R$>{{h?EwBE;mZJs;JPQT2i6uK+#&@@mkk>aCR7u*bcocf(ED2kP{SL5-W86g!-;|4-"
    "?3&keTgaIF<z#Yma!!4oDsWPvc`=;hM7^N8Fx^7|2<e6pLWclm3lv(wj@{MB_EUW%b7Z3@{;uZhxJFT9d)qh?7HQA+js|j%pxuH9o(cWJ1i1"
    ")_sZPL}}wY!{IQ+|p*N-"
    "?*rZlR{VPV+~KRE^J+Q{gvTs`<iYZ;?;@WS)KL)Z_Ns%MORic_@8tY?R0D1{e8d3cS>GHfohw;jQcgJzLWC49CYy3j"
)
_IQ2_S: Final = (
    "c-oy+&ubGw6#k}V8Z!(H9=dj8Nc>SnDurM{s)z><Lhx3Qv{G30AQf%NMGB>t2>u7sTh9e=dh;OUPxH&nY%;UEv&OQ_%+A|4-"
    "@Ny|9}6sDna>g$W?trMC23*bbo(3LUPJO3R%mt#ryA6=nA+?$$3cLkh&<PQXpj|Fk%@Xcik5eR8=KxezNU<L*a>WUSFk9T-"
    "!}6|lzo(*7e1;)3yEP$&*Z%Tv4s(?^L-U7)VPlU4rP_+?Gm$oyi~2%@yPmqA8|<Ijdr$A*R80}|HouZ!*N<-"
    "xsOc@MHtgw>Eu}jR*ENhZx9mvkg-_Vc(iDZ;^W6iyL)tCpTfF{P@B6Qu3hYlV#Y1zSwf7l^D)Jx@OgfUTh5Yi_`(}sV1t+^YaxqyY}+-"
    "ppi3FijMPhA?DDMDCLaRk#Z~ick*rWIMxzQw`?!Y#VRJQhej|D|!6)}Nk#!YSUnf_~>6BiL#iFOHtRK%ZXd=qr75hh?Srgv&8F#TSZGQ;6(!"
    "Y61$&=;l6??IaSkfnQmz8>q?>G`u$!l!mkdk$gAzPax+s@J{bwcfRo@z$69Ct%gyN#LTXNk$)!aORR%px)gDsUGW*JsSJKX}Zu4_J|z^zGBp"
    "XwOj;F5OKZ@J7_<;U2$acu5{FL>}Fb^mah`b1{<nAMu*2iCw;()4mI?wkPeG*><EU;s7^U^(l75Z_&jme&G?mQX}D5!CTzHUl`O*2m"
)
_IQ3_XXS: Final = (
    "c-l>nT~C8R5JfK_-_RlyslnFP+N2s2qdxnlzBT^;f8&`cA%^TOJ9FmFos~kqn02LqJyot-"
    "zg?m!f03W1DrFO$dc>$gi58rRSC=}d(+a}q(BqvNeP|$Rnmu$gYhO;Q3$*r##a`!pss|K8YI4=om1rDvVsFu{bSAU=r(|Ap-MeNqDU3c@=C_"
    "N>n!U!4&Gy3Dqq62+z<#@%L3i_vJ#0L?C^<*(R+DM8#K|Xn2a(`tq<c%|#9BcwU@Ll@xh?72KwWDKbtG$@dvcMhzteZXX#zDs*ld}ew3+74i"
    "2mZ($i^!+5L=WUsrf<es5d%W-d-TUNdsT#8DFt(@NE6|MD2}Qed!PKX%Cq"
)
_IQ3_S: Final = (
    "c-mD{Yfr;440PH&+9q9Bw!y|g0u5<`?-T$3pK-o8(@>SfcKkSBToH$_myV~y*-`cqB|z%UqH==P-~Bwj)Z(cnnXw1NIa(a=dirR#mT87GK=-"
    "sH)`*OlnWvXbO|6mpA`|q&+hD#6q|6K(S)nE7Za#`+|A4b~ReR7F%|8-r?NOr=t0mq??33~04avmSSg80MBUeb-"
    "SejX-a&macxyY5>>HYc6Xn{?mhkq!$J1S=!ReiR%(iM%{x@(OiwTZbC@q1#fY<l$Dsz!8}v5&AP-"
    "km4~ShPmQKG1uTH*)ETJHzs7csfS3+2~m>GOA-HMY|=2dQ;!<L~erhHu6+71LsYrXypsf%$<o~g0{o=VeDqP*qhY;6F#jJtajv-MB-L-"
    "fjk7ffbvx67wnZTIG>Qw0a+o^Pe>~wkDM@N>BL-$veqm1Z&aQ~;8G?hR-NSqr$en7XR*mCxGnO9wL{b|JK5lDGkXC3EpolfGtfl#ty~tOzQK"
    "3F>Vaer-?Mxp=0-H5Wzb5RA;Yu7o3(#V`8;tlHppH7>ZAO?_X9|;@&~>@55W"
)
_IQ1: Final = (
    "c-oCujc(&M3>IZ6c4}XLuysxoU(*5|+U*W|o!*)NJz$6K)~(nx?9InN(UP6)h9ZqEQ55-"
    "+{Kz=xU4?(%)h@UezZdw~xQ^G(@JUu$+k0}LyA?jQZg3HwmiURNgVw!!Z|8Tj^Q61Mx9ECZp_>E#m$%<RP7Wy5q0|Z9@{ynSd?VnVNc6ZH@e"
    "JsC#X7{B-kqaP@hk2AiP8`F-KkWAt7QAY)<(Sfkgf3`3Oha1qK*M20B@6(2gRm4>U)E-"
    "8?$uWeTk6itoUw0mb5>pbYL8O=B;2qC>DUL361Es?vyoE?#&{)&@=RYf}gELYY%i|tB5vueuMV`$8^L|&JG;!VCdIs=dYFt^O(q5o7o7NWY6"
    "~i%jQu9MyJZ+pDc=Qot>%GR<gXZ^8>EZ`x#1qg~*we@Qc}9-"
    "ZJ3=GsUYH0dv`#*P}g=v2FOB_DIub_YTqa?s^iPlw%RKy~I2x1eY=^rn@QAI<_QgtP*Nllw5Fx_k82DiX-"
    "n0v%MXhX_jt_sCr(J8_A+C_)OOIMJ|f$t;OGK<x`AWe(SV;TaLztGwsB^9IP-xJbC_uem`@}$lF`Jx3d_D$E0~TIW>BGpkgnjmha3{vH2JFG"
    "%~Nr4dP|WuuAi#&f?!%K1&6OHQ;`;N*d6oirFi=8{ECX+WH>RI-"
    "h83HG{k&T${GWeR43XrO3QFzNai7vz}J24&<!Z{K#C}W>FI!PJ9SjIfBs@$_fLEU(e9-"
    "N{hKzD>}=fcD&|d;5=Dqeu&JPt*;A)@|saYhI`WZhOzM$c|!67;TUrsisnNs{G~J3`ki=wUoe$eK|V;VOH`AMzBoaMh|WA7k6M*t%k?B?WYd"
    "k-Gof+fJ_DEziCZZ6Q5YtVEEK5qcp}e7i96YmBMV1aw)Af9?ey+mV>I0v^X*aB{Dgg{x>v@~Q1mKabdW2}16d1PpJ`<WBl3jp5-UBgC-"
    "F$^kQ_}ce5jr}&bx0%eZ^JNWOsDPPyzWqaxVa735lghEUm7WW<S~aC63J7S@tFVT)9i?!x<BGj7g<^EU4YIw#K^~n-"
    "jkB|9j2^>5z^4QRkPx02Eunt<R>uX_wuqoHr~IPwcZUTVX9uIjG7q;=RT{*eoFkJaKPm`7Y3^&7<cTPr|_~e|n8+!0&*bNYpMgk`41tjeU2g"
    "NF)~OHD`Us3R15tzNOU~42+z2KdHv3Yy;f;Px;=?JzY*aO>6z4J31eF%du!&=b4MWMzlRTE8c7Wo9liBnKIvTZAffB&~$@nEcI0Kf7$~^uFG"
    "eXQ=W}STV=ut%8!Bj>Jl;8&-"
    "!<7b1!v<{s0cC^W<}vw>rG#NFJM&N&e@#&e(CpfbEUeAt>uNMHedPyxKA&+KihRddpF+vVOKVzqS*sDxUbg`_6rW)R|~~jZY;HiGI<YI&#DP"
    "VmjkC%rNjjyU<D_n=|~vYWh(tfvR|sF;nX8<ky;KN#ITbP8ewq7n%c6ry9y2s)QSxtDXxi#@Ts&fKk%4*xPR|sjp|8g3b+9;qg1`h_CTjCJ?"
    "*L^GkSHto^7+COd9fj^6)Z=>>O;Z%vASL#MyL!t9sD;QpE9LOBt1#e60`;LV~D*y~_yNa){j{v`H9hJ=!7?*GI0Go8{0eoE|hkGrq#kd}EZ{"
    "R?w{Q3U"
)
_TWO_BITS: Final = (8, 25, 43)
# The table of each grid, its values, and how many of them a vector has.
_GRIDS: Final[dict[GridName, tuple[str, tuple[int, ...], int]]] = {
    "iq1": (_IQ1, (-1, 0, 1), 8),
    "iq2_xxs": (_IQ2_XXS, _TWO_BITS, 8),
    "iq2_xs": (_IQ2_XS, _TWO_BITS, 8),
    "iq2_s": (_IQ2_S, _TWO_BITS, 8),
    "iq3_xxs": (_IQ3_XXS, (4, 12, 20, 28, 36, 44, 52, 62), 4),
    "iq3_s": (_IQ3_S, (1, 3, 5, 7, 9, 11, 13, 15), 4),
}


@cache
def grid(name: GridName) -> Array:
    """Returns the vectors of a grid, int8 [codes, 8 or 4]."""
    table, values, width = _GRIDS[name]
    steps = np.frombuffer(zlib.decompress(base64.b85decode(table)), "<u2")
    digit_bits = (len(values) - 1).bit_length()
    shifts = digit_bits * np.arange(width)
    places = np.cumsum(steps, dtype=np.int64)[:, None] >> shifts & ((1 << digit_bits) - 1)
    vectors: Array = np.array(values, np.int8)[places]
    return vectors
