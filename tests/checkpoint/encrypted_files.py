"""Encrypted files that version 2.12.1 of tensorizer wrote, compressed, and what opens them.

a.weight, f32 [2, 3] of 0 to 5; b, bf16 of ones [4]; long, f32 of 0 to 699, in pieces of 1024 bytes. They were made by

    for params in (EncryptionParams(KEY), EncryptionParams.from_string(PASSWORD, opslimit=MIN, memlimit=MIN)):
        serializer = TensorSerializer(path, encryption=params)
        serializer._crypt_chunk_size = 1024  # else 2 MiB
        serializer.write_state_dict(state)
        serializer.close()
        base64.b85encode(zlib.compress(Path(path).read_bytes(), 9))
"""

import base64
import zlib
from pathlib import Path
from typing import Final, Literal

from appliance.checkpoint.decrypted import DecryptedTensors
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.loader_choice import CheckpointKey
from appliance.checkpoint.read import read_model_facts

KEY: Final = bytes(range(32))
PASSWORD: Final = "open sesame"
KEYED = (
    "c-rmOc~sBazsK=!WvCP(8j#e9D5R3)+aQ@Kks>OUCZ$L?rVOP*1BEDxCLy6TQ9>Cq{D`7BI2vd$qznzpJ-^>Czq9VTYu)?r{p0yq>+{+Bv-"
    "f-N{aT-YKA){twhOn43I1;~eg6CN-)nmO>n<*E9JkTM!_D1KR7~iqD=OMuGrN1frn{BzUL_)M5*;A4))x5r_&U3fb8_|aarB#@C-"
    "Tp#AKkUFBER<jb&{8lx7)w=7s>zYfW+>3YtetVO_Blt000000000000000000000000000000000000000000000000000000000000000000000"
    "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "000000000000000000000000000000000000000000000000000000000000000000002+|48hAdZOY2$8j57Jlx#<#DuQ8qN0C|iT!n{3PePd`%"
    "XEV;b`6azM8Q_(;n~q(bLzTI=&z~wBxAzmC5NVQe@4#HxUsS{Mt?+=<)BKYo5$aKVjBAfx4O9(G{1rJvr&vf5VW?6GXZz^|bO$*XS!n=sC(?y%Bk"
    "8sC@UhVMbEW9pmSQWfRZ-9;UE-sDWxiSKj8^f$@Jw77;iN5L#;s{Cs?!-"
    "N!k(digl|P0$nR@hi52i~jtii^a>M2R`*uEPFm!YmRnCeAK?l&HFkuGt87{{co|WR)srMhbDz5y1J+ro$*a>mOWcrveatyuh{OXhW$D$i&`?1?sU"
    "2uR)&aok6(_wFx+O3W#7!dWA+eu`FOki^R0^Hi*`pl>C;d9kELGT5z}*CHj3}EYA+JDf3`L}BXYoNX~EUQXIK6wn(hCHw&2I(zQ%F`KJ9UsIO2=L"
    "icM=x_r%M^Hk=acu8iJ$&wpKT`x()JvfpZthCgq$5bIg&cE0?Oiob$Q!;2z`yvTc<YL_x{%LCnhFBHvelI%Wfy<5+r;+e04EL~<rR3_MKO6%-"
    "1&K-"
    "6%!eg{r{!SU6z1hF1b)G!dL$<h5^TW&hC03UOQ76`lOR6sU(NjY1sW5zQm+QPq&qDl#kzGD^wfbcytBkfc2gQvosZt9|T{Zojr`U^(+lr%4ga#_i"
    "y{4d1SiE+6+s_`8{6Cu95MC(zqA)zOwd{TK{e3DE<HyYZZ0#&j9eH=`-"
    "PY^=sn?`3rVKVpS|izW*sVXMbV?6A6ZN=UVw#n)Y)+kI<F+*cJ?ta27kr-DcE5GJ%z(&(f@_PNvVZ;&=Fu={nb-"
    "H*6B6%vSJc1$?dj%cA=_QYjxe72Xyl3aYEqqoQDJ9?uH4!xHDO&tS6S`W<R-"
    "5r)wPdBDl|3n=N7CJU4Q<nX+nzqsu!L<*;2DFg^Zpv?#mPT=$LVD+xv%3`zGq0y{aYp`sb3DI@1QEt94woU$T5#zxjJhvI8@do+L$Ij(?r?4?j1Z"
    "E6ain5>NFRaqG7#<r|Iz!q+xLr!3OZU4FKCcFR?J?{u}BVYdbweXrUp@6f4Kl&RL=_MKR>P@q5L$6Zme2bQnyguYX|yGZh^ZA?bywM3<!_Z{4Ktl"
    "w<;@Yeb~I}86$;a4v7)mV_0@hxSqOjGvti&ItWj;Pp~$4TdP1x~3SR3AOdH~Ovgno9RArm3A))wxG4e6QQejqy}2beH~l?PrT~!SuH3tY`8T6Nhg"
    "<6fVBz{XE5fPZOopv!nIqok-G4Jf<Zx$U;yoqFp{v=eDl!Qew46N}oMi^|de0jf=UL>t!i)Eflx8*A{-f-5~9-m$-4o^w)h&)z-"
    "%xyBQL&*wA;z&B=D@U3>JK&0?-Bb}0zHbwRpFH^M-!t6|vvfQJ@RN7YV^(TvD{x7nbzZ|etPnB%LTGV1aX5&>3bnS$q`*CRte+mF{UH|k}S<(-"
    "uDVyv;kmJEXmlZHvpWs7%z&<`(sJ7|Bf%fvJd=^jOrgPxkch`B!OjeYUlXR$HS;?qA!nSQBGQLH;~`$*}rc)PfhH|2(8ZMv|*V93%6{j?gF3Gz!q"
    "Z}c#<H!W_|8e^((Qdrco+a$O&cj{9mqg>IHEQwX7s<JzRo_QQ{xLet4uzLM!yYEfO3C|mSN0uB^8M<WM)R(8z#Wh36PoD2)sP)*otG{yT>h{i^Cz"
    "Vp>BtNln&Cegz`_=B>MB^unKOLW$U*IrZVc_h*ir=4Gt3|5~eKcp<gvv_wYc)-"
    "y9Sn6>ypescKe?dkwncx<a@~pcWttBx_9Ud=I3}$WS$8hw!H<u_?F@rIL@hKG4qk3~q4JEG{f@OIl{%l&8_&DwE-"
    "k8Wu5#({v@la$WM@~dwA3&nR?g&ndxKM$o>#cR>BtXz{j_GgsV??w6WgwyoE0SO?cX72c{b8^io767c6H9DH$}@8qOOaE#g2Vz5Y+tYtU;IVT|2$"
    "Hk9z0hV{a(9W={4ERx#N4xukmUkBtYmxdwdnj?R4a&fD8OF*DmD^~IZHqi^<i{0h%)YA>jFaLMm<+bR@O9pPJ@ZctGYm~M5q=d=w*C66{Q-"
    "eUiAS!}xEh2<}d)$O0BYE_Qjaw$2nDoZ{*VC72JJ6~rV*L`I&XxhP|EB$<GhVGiR%K34{p+W^Oz11gc;=^55*u7nPC;emkk!=BUp3EEXIDblyJ|m"
    "t#@V`^*zON?xRitsuC;PjV3Nc+0OOguh>rD!$THZT8^Re%o-;Km-"
    "`YjIiHH(`s7<=?|(pXWs<!Yg)p09c8*^nPweYH0I!^QB3(q+*%6W_WVyZ5D9<&S9t*58R%E7^M9>dmI;z^7@Z;@*jkM~uHKv_$n>o44$p-"
    "@2QpwdJ#<a%NPWu+0#P2t?dW51bau-"
    "({3^X#eQ0#`zU#XNJXY_3YDl?uNvHi51zEXO%C#jC<O1n0dvFnI+04Nmfs+zDPffGtr;AHz#Je$bhVhYcDeDvJby|7L;y~d_rbxp3d+|r@p@Z{vb"
    "x>K*jk<Uvl0>+8ZVWj#Up)o4d^Z!-"
    "}$)Woy6h{WNcgmr?It?(0jvb1n4WF8bWhx1!0R%<SOiEjfoWrDN~vJ{#$J{lvqB8%@C{#IMzi8{=eF6OrwFwA#_|spH9mKc?i|m-"
    "d=9>0F1t=BW!COaJ;7T;BP9UBDk_YM<zRat@mCb!V{BN?R%aGU1Vjk8E0Ye3e@;Xxk^NZ^s6_om`NwZSd;(zDaxA--QH@npZu2(Zj)$T)!5LD_h@"
    "NLF%C0_>Zzdv7#$f0<V~D9qwNIVfEzBSj(IDlV+4Qk2>U`E4lx&%|4waR?#)5b<E#7Z}<AM&DZzn(fqf)ByK63QaQG|`hnu5O>5=$u9APhz-fc+*"
    "$2}$blvw<nc#Qm#Y_8{BULm658{Iz=B9^_Jvj6A?#G?EO5YORsOXOPIVSYLZsXwk=*S<f(^XAZU$r=55@+dX9FX&8!%hXo`&Zj4Mq1fcIf)%#;I_"
    "R^PHxb^ywvRDAA}~2i8pRVJaSlex_DjG&&w;@dW9a6$_UaHZrC!dHCAMz=_{WpV;go1eU<jrcl`{J_8CzMXBVq~^KH*qSXrJW>9Jd)_nwg4KFKmK"
    "1^Q#=wmNF>8l*G%xaz>hmIZYq)t2o!Jxe_+Z==;vxscW^nbOyCZ=_`eD{6PFS)pr~<N3~Zi1&zv6&pTY)7suwGd!xRmvB`~;+<Y`V_TL*D9hFb1n"
    "+pg)9&Ym-tI?&dwBXP_0v=q95lc0|5jjLej-DqB{ZczQnD@N#?ObV7U`|Kmm+>HO<yaaQa(vo?!J8Ko5}k}o*I|2JfLh?;cQEdCh-"
    "X^nu5Uxd$)e7jg^}lc3tn>V}IoxBivmIqP{h!?XFpz94KMAN^EI>Me#MOTG83rV<abcTqse@oL(Tay?@+qvRmh@Y|uyz@I1Ig?BSL=u|cK!hZWa!"
    "^z!L@M|u9S9^cg7+&<V;)jm`^(6eojiv8w7lhWRO@={Ab4E=sNZc?vxXJ(ce>B@cHozSaVzE(W-v`f{8^O?I2j9T*g@Xd+}-"
    "!GlLT+_E{xFwa@Ja@U?*R|e3;%LngnZ_$!Y1ftIjcvS>f^K_N<(gJZ8=^Yt>mm=E)8ofQ-+cUFX>hL6=7(FB-"
    "R^g<Ol*6U#Ae67w&t&fC=TDBU{?0XP1mb3FEqzmEXm()%q2CEkUoXOwGAfqzjNdE$@TMsq~xtXefrwBAm{d$n%H5<+j1XOC^XIQcQj~J^UIzlrT&"
    "_8s-61ntT~g{PviV0JDX$2%DdDb99r-x+GC-t-_D8uXwxv9J3dqAL`JsNSCyqHksA-}Dh-R?@^R-%jhrD-"
    "={Jp<@2nQy&Dk668S}C+EN9Kh0dfJ>5pm_`?B%al?*5~vdc#F?!BtoF*1FOw_2aLMe|Ryux29i>_MA7(_hl=_sM{PbN-"
    "}UBR`X~>^*Zx*&yR{zESpzYcZfMp-~Z;(nfHs-Q&hSxYxNX4ch^J3BBE@brtRHfYroI%EYsO~Wk8>8)lRcUACxQ$sFt%*ebKwzI4-"
    ">{am<YN1`C@y^?6Qpt)q4>9W`s+zGpipEsQR`RBqH;LHMVij8sR(0Rx5fR_|=L)h2OILvzhTr2GQo=kF?39WXO1v3OJMVfo4?qs{Z&T26mo{`-"
    ">40*BF2+Z_^IMn7?O+Sl1AGBd5i{HJ(bbX8}0{y)k?=BteKn3Zv>>a4aw+U~+<!;dtC6+O~?qVp~>HT;T}j&NYF{RQUE9wo-kRz{CL@2h-"
    "Yo@6PLuwnc1g=fO%D_zTdAKtbtwcamMaYy02A7<{mc2#}(F*L8zam4zNDnAjYOI}S5^;v6TjO=Yz&DyW@S^9y;%lKOr8VY$=XLdX`FVOn+gZ^LFx"
    "+{b"
)
WITH_PASSWORD = (
    "c-"
    "rmOYdBZwyTEaN<Qzr^q@+@zq9n(NQfNd{5gnW&r4*w66&*%$$f05+lvF}G7fPg*=}03LniM6XBpsAu&z`COT>IKD_KUq=>=)n9y4HH0^*r}|Ki7S"
    "&H*4cumpL0ng#Ksp(*O1SpB&M@o)SXt+96AQeU=3YL?(Od2?XC`Y`*Ug6#jcu`ko~$<RMU)JYQER$UneynYM?wpTB$11pU9Fw7<vp3je76<0L=-"
    "RX%^!7cTnq0CB<J`)%LHw^Bj?000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "000000000000000000000000000000000000000000000000002s|B*ZYo(Uv`+_giN`uZ#j5}E9+ClLI(Ci3S!LP%Ix?Y{dv>(0u1lZx|qdv3gP"
    "Z*_y-lBdUWEhGwLbY(UqWo!%nQA9}V`%L(+>pQg{yFx<pLOT=B?{e{0jM)Ed?}&un(&NVe&J_~<d*)<)cHhCb%a1$dUD{##D5QR<$=5TQcPBOcs5"
    "fx;ePx5EO_rKd7Uv#NlI>RdzTOk16fNc25U#o6dEAuB?xdq%@-E5-T-tK)pC*NcJQOC+*A)u#5Aa;3?cwd`?;bQkUs&`<ql2o(eN}unQX-"
    "{rlULZT#FaLkI>zHnr4*`Gt7Uzia`W2%ZKJaiYk$jl@w`SP{^D|>?&L3Jx2+v&(yf;MsFyG?x$F8<xtlu4c{$S+tn4JdugjU`Zk2r=(fs0{#zcku"
    "{8#z>=a&;M5`1q)USL!jHhzuvP|uW4)7(Ac3N2%7icik@T-"
    "GjmSTyWkVoCptW?cSTGrDu*kBeGfjjjnbPUy2*IQ)**44H53>i0#yM?T%LEh9*KhUcZ|yw_z$)tfAC8QlCdQoFD5!U(yz2ZG_c6|J+DEOh&}*3ZG"
    "f%_Ql@TdBYE4(r$3?KhcF+3o9V=hAU0?cCfz3!lJ3-"
    "PCEuzN4~ClUtvN?J@D#T$>U;(z|J6)<jvmCV@n}tKspBk=_07#(bRJWnGj#!eDE~)O1G^+hJMCIkv_&#cNx1RJ4kRcr5jEZLkWf(#mKp&Q*J$cyM"
    "K>aJ+|#_U<dm+S~7k2{LcaYo5}n=M$Q!?w!9=Q8KRJxoNuUHubrCAL`|cj8#0n=I%0^-xP+$x?Jm<_Aa;5;-"
    ">^({nBxcfkN#%Z)C^rTi<o?!O?wQLzmwf>|WI<XDV7`t}K`_pfSKN<Flx|L)|L5!vUK{U))@K?$qe$Cx*w=yWcn`WnU26S7@`_YV`X%TS{)39Z4;"
    "3_Oh2$vOWCjTjGKo%fhNTZ!6B&eURwB;~1=bsWIr`1(&k}Lc=uXpGsP3{p*Y2&ysB)+j|b)X7Iqe=V<eT(t~B`{!>o1YmNLl^FURV{>@5TwVSb@g"
    ">7Rt&QzE@#!7u;#Ft0cl*Rh(`}KhRjm;uGQn4XnGu~`<3iCM|He0Yve8|xkGs17bda`J^dFzcoiWD7md^gPA+}pC`r>K+TBV2p+^UnzPzH4&5Wme"
    "-Mzu|uOs`oC7#2e3<+gp2>meq=e-)xUv7<SLxv8{N*!<^rzq_k)a^*f_m8mHA|TDL;7a@bF5&5;@-ZirtD6&&=-"
    ")6v_ba%O*s{(+*Y(eY)|1_$k^94F^lY<NAls&mWz1Fw$EUH2sMk&*Yg$usTc)f|_#w(N2q-"
    "=^VN>i?;5bzo=TNyko2ld97$kbQSzRM=$Mn~9U|jX!F!^Rm>&xO&IL=Cz;7MBYbsgr=lU_*r-"
    "2>jNJjtv}uHdH#pl`;Hr2a&mUhjBIRH9c0vfWbHifqx&Y0D-"
    "7IvV&PJGQ;&&9t)iv}I(<Cc(zVNTwZafD^<NSs(;Bt})a^Yc9Xuv5{r6qp=6B39d30@Eig%xxvn<10FUrkq5l_D&T^by^UM5Xz`^<ncP3f)@7t?I"
    "hy-T#NL{F4VHQagVqLN3{f-!qU2kjp?a-VsH&fT{nhME1%$BZmrG|6S0fzyp_fzkQ)iUJw$-P*Q&-YuyymXH~^C1_x{r-"
    "M!P>sCcQ|0(6)+Nx()TU?0!-DhT<-eR$>*KP-eHT(bax$XJsEh(G3^+h-"
    "7Yb>AOsJc3Te5ZR(c=en*S9|M>%wK~m1~}i|wO3lLNKB>FzW4N@05=gw%U@K5_XtnDmj9-Ac-"
    "2OCx25j$ZcGa>tG6uurM%>&&4JvU@YgdmkH@7pMen?Pt~}!U*3;9|VvMD=Kld!Ej{cmy!m)kn!YZ3pelmJZi`J>!S2a?fS?D+WiM!>Dj-"
    "1i`W|~(&`K&GUq_tCY*KxHZ#S<dNufL_PiIY&iX8loJD<>qnkK&h0bI#5=zG>=<4P%FfI{iM({ouXlq7s`TAAJ<e8th>ld!_vFUY*m=A}>EQ`lgn"
    "@J-M#`*P8aBdS|cRsp}YVSSfPtdX>WTgDa&zf7lW^&NcW`!l~voGo?Q?7Z-"
    "N+^`5H~Clp}++DpIJV8y|h*QzBpBHprxGkTl+%Lciha8x_FT_ZubX|1>7(Kj=8Y;R1i4Oh-"
    "y@HK0s)1j|F2M51@p3r2mcx#D`bkL+W|1Z~)&G(O08kiTYaIA8b;19)({WR`9ukZ<)GkH$!yO%O0O*t|rU!I*VwxZ^O!^q3E5xxU##>c0>>~rGdu"
    "g=%RV;&ftnVKA*G~Y5ub&qg^`2f3$t8${7vOFAIgp40_oV&FyM{4wI$;w;D(qHHV9#67)v8<*4dlQXy`b8tI6|5Q_I40F=!_nX#&&-"
    "%jS*6Y=pE&o7vi@}Y<o-L#YlN)DJnSSZ%2d`Ak7^M&>zGpKwtLsZi3Vdrr7N;F97;2vr6Ob>8lYu3ziNd*%WCk_BQMKU)mzqP`fdM3Vzb7zQ4X)-"
    "6{lwI*SugEK4M^2iTIi$0mI_*_vuRnw(lAou(Ks_OM0sE<LRnCJsSHZmGdX$OuKGz-cl#t{+yS>BdO5HS1bHFbkyQ6n%WE)mptZ^M6IY<VSe>7lP"
    "se?O}}pUReiQ_%h-JeZ#pehG#$LY*)DX|iTSGA=Gv8Uqa;>ikFNc?2qT~KU6)i3Ma|ooC44APB3&vZ^6ezM*#SduWOaOSoH0(u-"
    "#V(_<qea6X=`=<qw2h6|6cF*WbLMwe$QS^G?ZNw5u#&axNv0E6T?em$96_Om^0&+$X(qH3$hm<%*?ZJ2_ODYF5sEUVt4V)`C9eUjY}_H6|e5zCOF"
    "$+V|U?$*q9d)5@**P`H(BDY-EsPdgW(}(|beSS1c1g5m^6HEzs7n%-C4iN8N5ps@$;F5YNW@+2Ze_^8R&xai`p9xAzks%8YPaQ5fBLt8-"
    "psvYdTZ-u3;hGgB&pmtT<{^wlTNUbcR$<l!+Q87qxX9T_C9sXoeh_OQnZX>nF&dS(@u>hDF?wm$I4xaDlou&X{oqGYCc-"
    "6iR$T$jil*PUn9E!%Cj;N)=CzV2P)?G;KcA5G6v+)^B<9`|YUjb!!5E3);1sxRJYnCzjm#`2n`*ydYf_B>SyjLmj>H{8f=Wn{`3gQbc_wq-"
    "I&NBS1k#8vM&bpMU#qFJ*tRYV)2l&(IO7q0v==gqdnvlrgqbBev&@isP7S!GglpxN;$uOBV;sWePIJY69x)Mf4Ps8^AuNsZ+RyTiMrdloeGef-"
    "rq*wA8KmFv~czUh*(7aaRnIZupv8SvcGKTf~>W$WTz>A@K<9yjJze;yw5GNXRW#*9r4L!`|H?>!k+D09GP%B2zE3KKQ-rg$1enyJURjIHU?AD5D_"
    "sxsQO{L8C9yeu6$ZwH*3I&j?~+ovKQvO8jqZNE9EHDQO7{HqqtzEYFK`enIC^j{&EHNb0x?$6W8CjGYNtIn>EPYSvQO^t6zt7*D!s1#BcTRtpV;5"
    "BHxc<*K39bF>3dkU7m$V|Dj=d_Dgm5BBk7tg3cv7Qr}@4QTEUU7Z4^!%XBSEN-"
    "+OPUqu<yo7YEP4K*yeoCllLD>U$KAnuC)VxX77{ize36b=P2ZvFtsWZAQBhx(pK=;~cUtzjTxEG<TZ!aNSu<*jB+Sp*c{Ul;xD^cZY?a-"
    "5MW}4$!1}g97Y8itiB7q=KGWgx<A|$CNhU5{;RAi^tQ=jhF1J4B9v{59@4EK)p<|Zx3mH1?%gLupqOGioyKa>=Kbsq*Yi#m-"
    "d*aC5r+)hSF<RMSzNP&BS6;Cn2HcgjjT_T+qIK{Phfn)0PObM98!MV-"
    ";J<yRsGX_zn{1`5)W~kx<;62+v`+u>du5uFlB@ZwjCE~o|0>p~4_%kL{%K<Esi8%2A5z@jxL=W4AF@%-JYS=s{`_*+!KJS(!{6FG+-"
    "4GWVct{~#a~V1qkD~W9y@ykhA4m0P=2t;=%*;n82Lb@W#iiqS#BR;Wb&qJ`R>X`ceW4H9WPz-NM%xWkD|A)b7P67j&oMJ>;n0&U<bGHzYXrcRa5i"
    "Mj(gc|n<XXvoHX=I(&EfQBAjhL_5=-yS{QI%rmVZ|`h|)=Od9k@%ZylDpyDsSWY)f(fpVvN)(;S@UV7i+L!D0_gRk-t13sxGF0s!!qZ-"
    "~QytX|r<Iqay$KtB-HL81_95{ZqCu-Tw^QHc6KPhy)YY|vwFTJZCQk4Hm(cMia^YiJ04Tm1~|EOqouHc;CZ;P$tZl1aBmL9qzGjnineejmsT?^J1"
    "M_F2(Nql6z<DU9}u-"
    "~VR9j;WKyJN`vp4TtBSJoD9YCW(ZxUapERIU8o+zD0ZZX5U%S;>w{*qvORHq@ygv~$|eLlzV)v`hVHXzNv?BB9@$P+e9Ycep$zbAH$Atd<Ese!u?"
    "%@W3qT"
)


def write_keyed(path: Path) -> None:
    path.write_bytes(zlib.decompress(base64.b85decode(KEYED)))


def write_with_password(path: Path) -> None:
    path.write_bytes(zlib.decompress(base64.b85decode(WITH_PASSWORD)))


def opened(facts: ModelFacts, key: CheckpointKey) -> DecryptedTensors:
    return DecryptedTensors(Path(facts.root), facts.tensors, key)


def key_file(
    folder: Path, secret: bytes = KEY, holds: Literal["key", "password"] = "key", name: str = "secret"
) -> CheckpointKey:
    path = folder / f"{name}.{holds}"
    path.write_bytes(secret)
    return CheckpointKey(path=str(path), holds=holds)


def facts_of(folder: Path) -> ModelFacts:
    return read_model_facts(folder, None, "tensorizer")
